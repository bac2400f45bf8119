"""Between a model's door and its layers: what a call hands in is packed, what the layers return is restored.

One Adapter serves all families that take ids, masks and positions alone; a family with inputs or outputs of its own has
one in its folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcore.models.inputs import EncoderInput, KnownOnHost, pack, pack_sequences
from bertcore.models.joined_integers import FEWEST_TOKENS, room_for
from bertcore.nn.encoder_layer import LayerContext
from bertcore.nn.lock_free_property import lock_free_property
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.nn.rotary import RotaryTables
from bertcore.nn.spec import EncoderSpec
from bertcore.tape import current_tape, value_of


@dataclass
class Trace:
    """What is recorded of the layers in one pass.

    Attributes:
        states: what went into each layer, and what the last one returned; None where they are not recorded.
        attentions: each layer's probabilities; None where they are not recorded.
        projections: each layer's (query, key, value); None where they are not recorded.
        shown_projections: the numbers of the layers, from 1 on, whose projections the caller asked for; None for all.
        shows_states: whether the caller asked for the states (an adapter may need them for itself).
        layers: how many layers run, for a model that goes on from there by itself; None for all.
    """

    states: list | None = None
    attentions: list | None = None
    shows_states: bool = False
    projections: list | None = None
    shown_projections: Collection[int] | None = None
    layers: int | None = None

    @classmethod
    def asked(cls, hidden_states: bool, attentions: bool, projections: bool | Collection[int]) -> Trace:
        """The trace of what a caller asked for."""
        states, probabilities = [] if hidden_states else None, [] if attentions else None
        shown = None if isinstance(projections, bool) else projections
        return cls(states, probabilities, hidden_states, [] if projections else None, shown)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is recorded."""
        return self.states is None and self.attentions is None and self.projections is None

    def state(self, state: Any) -> None:
        """Note one state."""
        if self.states is not None:
            self.states.append(state)


@dataclass
class Encoded:
    """A batch on its way from the encoder to a head.

    Attributes:
        packed: the batch layout of `hidden`.
        inputs: the packed batch that `hidden` is of.
        hidden: the last hidden state, (tokens, hidden).
        traced: hidden_states, attentions, projections and the family's own outputs, as users see them.
        pooler: the encoder's pooler, if it has one.
    """

    packed: PackedBatch
    inputs: EncoderInput
    hidden: Any
    traced: dict[str, tuple | None] = field(default_factory=dict)
    pooler: Block | None = None

    @lock_free_property
    def pooled(self) -> Any:
        """The pooler's output, (sequences that have tokens, hidden)."""
        return self.pooler(self.hidden, self.inputs.first_tokens)


class Adapter(Block):
    """Packs the arguments of a call, starts the layers and restores their output; most families need no other.

    Attributes:
        needs_whole_batch: whether what a sequence gives depends on the others of its batch.
    """

    needs_whole_batch = False

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        self.spec = spec
        self._rotary_tables = RotaryTables()

    def pack(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        *,
        keep_padding: bool = False,
    ) -> EncoderInput:
        """The arguments of a call, checked and packed; a family's own ones follow by keyword (`Family.inputs`)."""
        given = input_ids, attention_mask, token_type_ids, position_ids
        return pack(self.spec, *given, keep_padding=keep_padding).to_backend()

    def pack_sequences(self, input_ids: Sequence[Any]) -> tuple[EncoderInput, np.ndarray]:
        """Sequences of ids of any lengths, checked and packed, and their offsets in host memory."""
        return pack_sequences(self.spec, input_ids)

    def known_to_graph(self, inputs: EncoderInput) -> KnownOnHost | None:
        """What decides, beside how `inputs` are laid out on the GPU, what a pass does, so that a graph can hold it.

        None if more decides it: masks, inputs of a family's own, and with rotary layers positions that are given or
        texts that may be long enough to change the angles.
        """
        if type(inputs) is not EncoderInput or inputs.key_mask is not None:
            return None
        rotary = {layer.rotary for layer in self.spec.layers} - {None}
        tokens = inputs.room
        if rotary and inputs.position_ids is not None:
            return None
        is_same = all(each.scaling != "dynamic" or tokens <= each.trained_length for each in rotary)
        if not is_same:
            return None
        # Gradients of biases by distance take memory by the longest sequence.
        by_length = self.spec.biases_scores and current_tape() is not None
        return KnownOnHost(room_for(inputs.longest, FEWEST_TOKENS) if by_length else tokens)

    def ask(self, inputs: EncoderInput, trace: Trace) -> None:
        """Have the trace record what `restore` needs of this batch beside the last hidden state: here nothing."""

    def begin(self, inputs: EncoderInput, embeddings: Block, trace: Trace) -> tuple[Any, LayerContext]:
        """What the first layer is given, and what all layers share."""
        hidden = embeddings(inputs)
        context = LayerContext(inputs.cu_seqlens, inputs.key_mask, trace.attentions)
        for rotary in {layer.rotary for layer in self.spec.layers} - {None}:
            where = inputs.on_host.cu_seqlens, inputs.on_host.position_ids, value_of(hidden).dtype, inputs.position_ids
            context.rotary[rotary] = self._rotary_tables.angles(rotary, *where)
        return hidden, context

    def restore(self, inputs: EncoderInput, state: Any, trace: Trace) -> Encoded:
        """What the last layer returned as heads and users see it."""
        packed, states, attentions = inputs.packed, trace.states, trace.attentions
        traced = {
            "hidden_states": None if states is None else tuple(map(packed.pad, states)),
            "attentions": None if attentions is None else tuple(map(packed.pad_attention, attentions)),
        }
        if trace.projections is not None:
            shown = trace.shown_projections
            traced["projections"] = tuple(
                tuple(map(packed.pad, each)) if shown is None or number in shown else None
                for number, each in enumerate(trace.projections, 1)
            )
        return Encoded(packed, inputs, state, traced)
