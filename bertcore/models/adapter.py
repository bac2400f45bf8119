"""The adapter between a model's inputs and its layers: it packs the arguments of a call and restores the outputs.

One Adapter serves all families that take only ids, masks and positions; a family with other inputs or outputs has its
own adapter in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcore.models.inputs import EncoderInput, pack, pack_sequences
from bertcore.nn.blocks import LayerContext
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.nn.rotary import RotaryTables
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass
class Encoded:
    """A batch on its way from the encoder to a head."""

    run: Pass  # the pass
    packed: PackedBatch  # the batch layout of `hidden`
    inputs: EncoderInput  # the packed batch that `hidden` was computed from
    hidden: Tensor  # the last hidden state, (tokens, hidden)
    # hidden_states, attentions, projections and the family's own outputs, as users see them
    traced: dict[str, tuple | None] = field(default_factory=dict)
    pooler: Block | None = None  # the encoder's pooler, if it has one

    _pooled: Tensor | None = None

    @property
    def pooled(self) -> Tensor:
        """The pooler's output, (sequences that have tokens, hidden)."""
        if self._pooled is None:
            self._pooled = self.pooler(self.run, self.hidden, self.inputs.first_tokens)
        return self._pooled


class Adapter(Block):
    """Packs the arguments of a call, starts the layers and restores their output; most families use this class."""

    needs_whole_batch = False  # whether the result of a sequence depends on the other sequences of its batch

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        self.spec = spec
        self._rotary_tables = RotaryTables()
        self._rotaries = {layer.rotary for layer in spec.layers} - {None}

    def pack(self, run: Pass, *given: Any, keep_padding: bool = False) -> EncoderInput:
        """Check and pack the arguments of a call, in the order of `inputs.pack`; others come by keyword."""
        return pack(self.spec, *given, keep_padding=keep_padding).to_backend(run)

    def pack_sequences(
        self, run: Pass, input_ids: Sequence[Any], seen: Sequence[Any] | None = None
    ) -> tuple[EncoderInput, np.ndarray]:
        """Check and pack sequences of ids of any lengths; also return their offsets in host memory."""
        return pack_sequences(run, self.spec, input_ids, seen)

    def reads_on_host(self, run: Pass) -> Collection[str]:
        """Return what the host reads of a plain batch besides its layout: "longest" and "token_type_ids", or ()."""
        # The memory for gradients of distance biases grows with the longest sequence.
        return ("longest",) if self.spec.biases_scores and run.tape is not None else ()

    def request_states(self, run: Pass, inputs: EncoderInput) -> None:
        """Request the values that `restore` needs besides the last hidden state from the trace; none by default."""

    def begin(self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]) -> tuple[Tensor, LayerContext]:
        """Return the input of the first layer, and the context that all layers share."""
        hidden = embeddings(run, inputs)
        context = LayerContext(inputs.cu_seqlens, inputs.key_mask)
        for rotary in self._rotaries:
            where = inputs.on_host.cu_seqlens, inputs.on_host.position_ids, value_of(hidden).dtype, inputs.position_ids
            context.rotary[rotary] = self._rotary_tables.angles(run, rotary, *where)
        return hidden, context

    def restore(self, run: Pass, inputs: EncoderInput, state: Tensor) -> Encoded:
        """Return the output of the last layer as heads and users see it."""
        packed, trace = inputs.packed, run.trace
        traced: dict[str, tuple | None] = {"hidden_states": None, "attentions": None}
        if trace.states is not None:
            traced["hidden_states"] = tuple(packed.pad(run, state) for state in trace.states)
        if trace.attentions is not None:
            traced["attentions"] = tuple(packed.pad_attention(run, each) for each in trace.attentions)
        if trace.projections is not None:
            shown = trace.shown_projections
            traced["projections"] = tuple(
                tuple(packed.pad(run, part) for part in each) if shown is None or number in shown else None
                for number, each in enumerate(trace.projections, 1)
            )
        return Encoded(run, packed, inputs, state, traced)
