"""The encoder of every family, assembled from the blocks of bertcore.nn as its spec and names say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.program import Recordings
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn.encoder import LayerContext
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.tape import current_tape, value_of

GROUP_TOKENS = 1024


@dataclass
class EncoderInput:
    """The packed tokens of a batch, in the memory of the backend in force.

    Attributes:
        input_ids, token_type_ids, position_ids: integers, (tokens,); token_type_ids None if there are none to be added.
        cu_seqlens: int32 offsets, (sequences + 1,).
        first_tokens, last_tokens: the packed indices of the first and of the last token of each sequence that has one.
        key_mask: booleans, (sequences, 1, 1, longest), False for tokens that are not to be seen; None if all are.
        extras: the family's own inputs, by name.
    """

    input_ids: Any
    token_type_ids: Any
    position_ids: Any
    cu_seqlens: Any
    first_tokens: Any
    last_tokens: Any
    key_mask: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    def groups(self, tokens: int) -> Iterator[EncoderInput]:
        """The same sequences in groups of about `tokens` tokens (more only where one sequence has more)."""
        total = int(self.cu_seqlens[-1])
        count = round(total / tokens)
        if count < 2:
            yield self
            return
        even = [total * group // count for group in range(count + 1)]
        cuts = np.unique(np.searchsorted(self.cu_seqlens, even))
        for first, last in itertools.pairwise(cuts):
            yield self._sequences(first, last)

    def _sequences(self, first: int, last: int) -> EncoderInput:
        offsets = self.cu_seqlens[first : last + 1]
        start, stop = offsets[0], offsets[-1]
        arrays = self.input_ids, self.token_type_ids, self.position_ids
        tokens = (None if array is None else array[start:stop] for array in arrays)
        inside = (self.first_tokens >= start) & (self.first_tokens < stop)
        ends = (array[inside] - start for array in (self.first_tokens, self.last_tokens))
        return EncoderInput(*tokens, offsets - start, *ends)


@dataclass
class Trace:
    """What a caller asked to see of the inside, and what an encoder returns beside the last hidden state.

    Attributes:
        hidden_states, attentions: filled layer by layer; None is not recorded.
        extras: the family's own outputs, by name.
    """

    hidden_states: list | None = None
    attentions: list | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the inside is recorded."""
        return self.hidden_states is None and self.attentions is None

    def hidden(self, state: Any) -> None:
        """Note one hidden state, (tokens, hidden)."""
        if self.hidden_states is not None:
            self.hidden_states.append(state)


class Encoder(Block):
    """Embeddings, layers and, if wanted, a pooler.

    A family with another order of things derives from it and replaces `_layer`, `_context`, `_encode` or `_run_layers`.
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        names = _with_prefix(prefix, family.encoder_names)
        layer_names = _with_prefix(prefix, family.layer_names)
        self.spec = spec
        self.embeddings = family.embeddings(names, spec)
        shared, inner = spec.shared_layers or range(spec.num_layers), spec.inner_layers
        own = {index: self._layer(family, _numbered(layer_names, index, inner)) for index in sorted(set(shared))}
        self.layers = [own[index] for index in shared]
        self.pooler = family.pooler(names["pooler"], spec) if pooler and family.pooler else None
        self.forget_recordings()

    def _layer(self, family: Family, names: Mapping[str, str]) -> Block:
        return family.layer(names, self.spec, family.attention)

    def own_inputs(self, packed: PackedBatch) -> Mapping[str, Any]:
        """The family's own inputs of a call (`Family.inputs`, by keyword), checked and packed."""
        return {}

    def real_tokens(self, input_ids: Any, attention_mask: Any, own_inputs: Mapping[str, Any]) -> Any:
        """The attention_mask of a call, which an input of the family's own may stand for."""
        return attention_mask

    def keeps_padding(self, own_inputs: Mapping[str, Any]) -> bool:
        """Whether the family's own inputs speak of columns of the batch, so that all padding stays."""
        return False

    def outputs(self, packed: PackedBatch, inputs: EncoderInput) -> tuple[PackedBatch, EncoderInput]:
        """Where the tokens stand that the last hidden state is of: those of the input."""
        return packed, inputs

    def __call__(self, inputs: EncoderInput, trace: Trace) -> Any:
        """The last hidden state, (tokens, hidden).

        In host memory a large batch is encoded group by group, so that what passes from one operation to the next stays
        in the processor's cache (and memory is bounded by a group): sequences do not see each other, so that the result
        has the same bits.
        """
        can_be_cut = trace.is_empty and current_tape() is None and inputs.key_mask is None and not inputs.extras
        if can_be_cut and isinstance(inputs.input_ids, np.ndarray):
            parts = [self._encode(group, trace) for group in inputs.groups(GROUP_TOKENS)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._encode(inputs, trace)

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        return self._through_layers(self.embeddings(inputs), inputs.cu_seqlens, inputs.key_mask, trace)

    def _through_layers(self, hidden: Any, cu_seqlens: Any, key_mask: Any, trace: Trace, shared: Any = None) -> Any:
        """What the layers make of the embeddings; `shared` goes to all of them in their context."""
        trace.hidden(hidden)
        if trace.is_empty and key_mask is None and shared is None and _can_be_recorded(hidden):
            return self._recordings.run(kernels.get_num_threads(), self._run_layers, hidden, cu_seqlens)
        return self._run_layers(hidden, cu_seqlens, key_mask, trace, shared)

    def forget_recordings(self) -> None:
        """To be called when values of parameters were replaced: programs read the old ones."""
        self._recordings = Recordings()

    def _run_layers(
        self, hidden: Any, cu_seqlens: Any, key_mask: Any = None, trace: Trace | None = None, shared: Any = None
    ) -> Any:
        trace = trace or Trace()
        context = self._context(LayerContext(cu_seqlens, key_mask, trace.attentions, shared))
        for layer in self.layers:
            hidden = layer(hidden, context)
            trace.hidden(hidden)
        return hidden

    def _context(self, context: LayerContext) -> LayerContext:
        """`context` with what the family's layers share."""
        return context

    def traced(self, packed: PackedBatch, inputs: EncoderInput, trace: Trace) -> dict[str, tuple | None]:
        """The hidden states and attentions of a trace, and the family's own outputs, as users see them."""
        states, attentions = trace.hidden_states, trace.attentions
        return {
            "hidden_states": None if states is None else tuple(packed.pad(value_of(state)) for state in states),
            "attentions": None if attentions is None else tuple(map(packed.pad_attention, attentions)),
            **trace.extras,
        }


def _can_be_recorded(hidden: Any) -> bool:
    """Programs compute in float32 on Numba."""
    is_float32 = isinstance(hidden, np.ndarray) and hidden.dtype == np.float32
    return is_float32 and kernels.resolve_backend(None, on_gpu=False) == "numba"


def _with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in names.items()}


def _numbered(names: Mapping[str, str], index: int, inner_layers: int) -> dict[str, str]:
    layer, inner = divmod(index, inner_layers)
    return {part: name.format(layer=layer, inner=inner) for part, name in names.items()}
