"""The encoder of every family: embeddings, one loop over its layers, and between them and the door the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import warn_caller
from bertcore.kernels.program import InferenceGraphs, NotCaptured, Recordings
from bertcore.models.adapter import Trace
from bertcore.models.inputs import EncoderInput, KnownOnHost
from bertcore.models.registry import Family
from bertcore.models.trained_layers import TrainedLayers, is_worth_graphs, with_room
from bertcore.nn.autocast import autocast_dtype
from bertcore.nn.dropout import is_dropping, within_site
from bertcore.nn.encoder_layer import LayerContext
from bertcore.nn.key_value_cache import KeyValueCache
from bertcore.nn.parameter import Block, PerVersion
from bertcore.nn.spec import EncoderSpec
from bertcore.tape import checkpoint, current_tape

GROUP_TOKENS = 1024


class NotCapturedWarning(RuntimeWarning):
    """A model's passes on the GPU are in no CUDA graph, as one of them could not be captured."""


class Encoder(Block):
    """Embeddings, layers, a last norm where the family has one and, if wanted, a pooler.

    What is a family's own stands in its blocks and in its adapter; nothing derives from this class.

    Attributes:
        recomputes_layers: under a tape each layer keeps only its input and is run again in the backward: a third more
            time, and the memory of one layer (`tape.checkpoint`). The gradients have the same bits. A pass that returns
            attentions or projections keeps everything.
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        names = _with_prefix(prefix, family.encoder_names)
        layer_names = _with_prefix(prefix, family.layer_names)
        self.spec = spec
        self.embeddings = family.embeddings(names, spec)
        self.adapter = family.adapter(names, spec)
        shared, inner = spec.shared_layers or range(spec.num_layers), spec.inner_layers
        own = {
            index: family.layer(_names_of_layer(layer_names, index, inner), spec, index, family.attention)
            for index in sorted(set(shared))
        }
        self.layers = [own[index] for index in shared]
        self.final_norm = None
        if "final_norm" in names:
            sizes = {"features": spec.hidden_size, "eps": spec.layer_norm_eps}
            bias = "final_norm" not in spec.without_bias
            self.final_norm = spec.layers[-1].norm(names["final_norm"], **sizes, bias=bias)
        self.pooler = family.pooler(names["pooler"], spec) if pooler and family.pooler else None
        self.recomputes_layers = False
        self._recordings: PerVersion[Recordings] = PerVersion()
        self._graphs = InferenceGraphs()
        self._trained_layers = TrainedLayers()

    def __call__(self, inputs: EncoderInput, trace: Trace) -> Any:
        """Run a batch: the last hidden state, (tokens, hidden), or the state that the family's own layers pass on.

        In host memory a large batch is encoded group by group, so that what passes from one operation to the next stays
        in the processor's cache (and memory is bounded by a group): sequences do not see each other, so that the result
        has the same bits.
        """
        if self._can_be_cut(inputs, trace):
            parts = [self._encode(group, trace) for group in inputs.groups(GROUP_TOKENS)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._encode(inputs, trace)

    def _can_be_cut(self, inputs: EncoderInput, trace: Trace) -> bool:
        is_plain = type(inputs) is EncoderInput and inputs.key_mask is None and not self.adapter.needs_whole_batch
        is_inference = current_tape() is None and not is_dropping()
        return is_plain and trace.is_empty and is_inference and isinstance(inputs.input_ids, np.ndarray)

    def _known_to_graph(self, inputs: EncoderInput, trace: Trace) -> KnownOnHost | None:
        """What the host knows of the batches of the CUDA graph that may hold this pass; None if none may."""
        if inputs.on_gpu is None:
            return None
        notes_states_alone = trace.attentions is None and trace.projections is None
        if current_tape() is None:
            may_be = notes_states_alone and not is_dropping()
        else:
            may_be = trace.is_empty and is_worth_graphs(self._layer_blocks(trace), inputs)
        return self.adapter.known_to_graph(inputs) if may_be else None

    def _encode(self, inputs: EncoderInput, trace: Trace, cache: KeyValueCache | None = None) -> Any:
        self.adapter.ask(inputs, trace)
        known = None if cache is not None else self._known_to_graph(inputs, trace)
        if known is not None and current_tape() is not None:
            return self._in_training(inputs, known, trace)
        if known is not None:
            replayed = self._replayed(inputs, known, trace)
            if replayed is not None:
                return replayed
        state, context = self.adapter.begin(inputs, self.embeddings, trace)
        context.projections = trace.projections
        if cache is not None:
            return self._run_layers(state, replace(context, cache=cache), trace)
        is_plain = trace.is_empty and current_tape() is None and not is_dropping()
        if is_plain and context.can_be_recorded and _can_be_recorded(state):

            def build(state: Any, cu_seqlens: Any) -> Any:
                return self._run_layers(state, replace(context, cu_seqlens=cu_seqlens), trace)

            key = kernels.get_num_threads(), autocast_dtype(), trace.layers
            recordings = self._recordings.get(self.version, Recordings)
            return recordings.run(key, build, state, context.cu_seqlens)
        return self._run_layers(state, context, trace)

    def _replayed(self, inputs: EncoderInput, known: KnownOnHost, trace: Trace) -> Any:
        """The last hidden state of a batch, and the states that the trace notes, by a CUDA graph; None where there is
        none."""

        def build(joined: Any) -> tuple[tuple[Any, ...], Any]:
            own, before = replace(trace, states=None if trace.states is None else []), self.in_use()
            state, context = self.adapter.begin(inputs.with_room(joined, known), self.embeddings, own)
            state = self._run_layers(state, context, own)
            # Another thread may replace parameters meanwhile: what is read is there before it, or after.
            return (state,) if own.states is None else tuple(own.states), (context.in_use(), before, self.in_use())

        settings = trace.layers, trace.is_empty, autocast_dtype(), kernels.is_batch_invariant()
        key = inputs.on_gpu.rooms, known, settings
        try:
            results = self._graphs.run(self.version, key, build, inputs.on_gpu.array, inputs.tokens)
        except NotCaptured as error:
            _warn_not_captured(error)
            return None
        if results is None:
            return None
        if trace.states is not None:
            trace.states.extend(results)
        return results[-1]

    def _in_training(self, inputs: EncoderInput, known: KnownOnHost, trace: Trace) -> Any:
        """The last hidden state of a batch under a tape, of layers that may be CUDA graphs."""

        def layers(hidden: Any, inputs: EncoderInput) -> tuple[Any, LayerContext]:
            own = Trace(layers=trace.layers)
            state, context = self.adapter.begin(inputs, lambda _: hidden, own)
            return self._run_layers(state, context, own), context

        self._graphs.keep_only(lambda: self.version)  # those of weights that training replaced
        hidden, key = self.embeddings(inputs), (trace.layers, self.recomputes_layers)
        try:
            output = self._trained_layers(layers, self._layer_blocks(trace), hidden, inputs, known, key)
        except NotCaptured as error:
            _warn_not_captured(error)
            output = None
        return with_room(layers, hidden, inputs, known) if output is None else output

    def _layer_blocks(self, trace: Trace) -> list[Block]:
        """What runs between the embeddings and the last hidden state."""
        return [self.adapter, *self.layers[: trace.layers], *([self.final_norm] if self.final_norm else [])]

    def _run_layers(self, state: Any, context: LayerContext, trace: Trace) -> Any:
        notes_nothing = trace.attentions is None and trace.projections is None  # which would be noted twice
        is_run_again = self.recomputes_layers and notes_nothing
        for number, layer in enumerate(self.layers[: trace.layers]):
            trace.state(state)
            run = within_site(number, layer)
            state = checkpoint(run, state, context) if is_run_again else run(state, context)
        if self.final_norm is not None:
            state = self.final_norm(state)
        trace.state(state)
        if trace.projections is not None and len(trace.projections) != len(self.layers):
            raise ValueError("output_projections: layers of this family do not give query, key and value")
        return state

    def extend(self, inputs: EncoderInput, cache: KeyValueCache) -> Any:
        """The last hidden state of tokens that follow those in `cache`, (tokens, hidden); they are added to it."""
        return self._encode(inputs, Trace(), cache)


def _warn_not_captured(error: NotCaptured) -> None:
    message = f"a pass of the model cannot be a CUDA graph, all run operation by operation, slower: {error}"
    warn_caller(message, NotCapturedWarning)


def _can_be_recorded(hidden: Any) -> bool:
    """Programs compute in float32 on Numba."""
    is_float32 = isinstance(hidden, np.ndarray) and hidden.dtype == np.float32
    return is_float32 and kernels.resolve_backend(None, on_gpu=False) == "numba"


def _with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in names.items()}


def _names_of_layer(names: Mapping[str, str], index: int, inner_layers: int) -> dict[str, str]:
    layer, inner = divmod(index, inner_layers)
    return {part: name.format(layer=layer, inner=inner) for part, name in names.items()}
