"""LUKE's adapter, for sequences of words followed by entities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore.families.luke.blocks import Entities, EntityContext, TokenRows, split_rows
from bertcore.kernels.arrays import ArrayLike
from bertcore.models.adapter import Adapter, Encoded
from bertcore.models.inputs import INTEGERS as OF_WORDS
from bertcore.models.inputs import EncoderInput, check_range, integer_batch, mask_and_types, pack
from bertcore.nn import functional
from bertcore.nn.blocks import LayerContext
from bertcore.nn.packing import (
    IntegerBuffer,
    PackedBatch,
    capacities_for,
    capacity_for,
    close_capacity_for,
    padding_offsets,
)
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

INPUTS = ("entity_ids", "entity_attention_mask", "entity_token_type_ids", "entity_position_ids")
FEWEST_ENTITIES = 16  # the least capacity


@dataclass(kw_only=True)
class WordAndEntityInput(EncoderInput):
    """The inputs of words and entities."""

    entities: Entities

    @property
    def tokens(self) -> int:
        return len(self.input_ids) + len(self.entities.ids)

    @property
    def capacity(self) -> int:
        capacities = dict(self.on_gpu.capacities)
        return capacities["word_rows"] + capacities["entity_rows"]

    @property
    def is_plain(self) -> bool:
        return super().is_plain and self.entities.key_mask is None

    def to_backend(self, run: Pass) -> EncoderInput:
        mask, moved = self.entities.key_mask, super().to_backend(run)
        if moved is not self and mask is not None:
            moved.entities.key_mask = run.to_backend(mask)
        return moved

    def _buffer(self, run: Pass) -> IntegerBuffer:
        """Return the buffer of all integers; mentions have spare token capacity, filled with -1."""
        entities, sequences, in_training = self.entities, len(self.cu_seqlens) - 1, run.tape is not None
        of_words = {name: getattr(self, name) for name in OF_WORDS}
        words, most = capacities_for(len(self.input_ids), sequences, in_training=in_training)
        count, width = entities.position_ids.shape
        capacity = close_capacity_for(count) if in_training else capacity_for(count, FEWEST_ENTITIES)
        mentions = np.pad(entities.position_ids, ((0, 0), (0, capacity_for(width, 1) - width)), constant_values=-1)
        integers = replace(entities, position_ids=mentions).integers()
        of_all, every, spare = entities.cu_seqlens, words + capacity, words - len(self.input_ids)
        places = np.arange(self.tokens, every)
        capacities = dict.fromkeys(of_words, words) | dict.fromkeys(integers, capacity)
        capacities |= dict.fromkeys(("cu_seqlens", "all_cu_seqlens"), most + 1)
        capacities |= {"first_tokens": most, "last_tokens": most, "word_rows": words}
        capacities["entity_positions"] = capacity * mentions.shape[1]
        behind = {
            "cu_seqlens": padding_offsets(self.cu_seqlens, most + 1, words if in_training else self.cu_seqlens[-1]),
            "all_cu_seqlens": padding_offsets(of_all, most + 1, every if in_training else of_all[-1]),
            "word_rows": places[:spare],
            "entity_rows": places[spare:],
            "entity_positions": -1,
        }
        return IntegerBuffer.with_capacities(run, of_words | integers, capacities, behind)

    def _with(self, integers: Mapping[str, Any], **others: Any) -> EncoderInput:
        of_words = {name: array for name, array in integers.items() if name in OF_WORDS}
        return replace(self, **of_words, **others, entities=self.entities.with_integers(integers))


class WordAndEntityAdapter(Adapter):
    """In the layers a sequence is words, then entities; outputs are the words' states and `Entities.hidden`."""

    def pack(
        self,
        run: Pass,
        *given: Any,
        keep_padding: bool = False,
        entity_ids: ArrayLike | None = None,
        entity_attention_mask: ArrayLike | None = None,
        entity_token_type_ids: ArrayLike | None = None,
        entity_position_ids: ArrayLike | None = None,
    ) -> EncoderInput:
        """Check and pack the arguments of a call.

        Args:
            entity_ids: (sequences, entities) integers; None for a call without entities.
            entity_attention_mask: 1 for entities, 0 for padding, of the same shape; by default there is no padding.
            entity_token_type_ids: of the same shape, 0 by default.
            entity_position_ids: the positions of each entity's tokens in the text, padded with -1, (sequences,
                entities, tokens).
        """
        inputs = pack(self.spec, *given, keep_padding=keep_padding)
        others = (entity_attention_mask, entity_token_type_ids, entity_position_ids)
        if entity_ids is None:
            named = [name for name, value in zip(INPUTS[1:], others, strict=True) if value is not None]
            if named:
                raise ValueError(f"{named[0]} is given without entity_ids, expected both")
            return inputs.to_backend(run)
        ids, sequences = integer_batch("entity_ids", entity_ids, ("sequences", "entities")), inputs.packed.shape[0]
        if len(ids) != sequences:
            raise ValueError(f"entity_ids has {len(ids)} sequences, expected {sequences} as input_ids has")
        entities = _pack(self.spec, inputs.packed, ids, *others)
        return WordAndEntityInput(**vars(inputs), entities=entities).to_backend(run)

    def begin(self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]) -> tuple[Tensor, LayerContext]:
        if not isinstance(inputs, WordAndEntityInput):
            return super().begin(run, inputs, embeddings)
        entities = inputs.entities
        context = EntityContext(entities.cu_seqlens, entities.key_mask, rows=entities.rows)
        return embeddings(run, inputs), context

    def restore(self, run: Pass, inputs: EncoderInput, state: Tensor) -> Encoded:
        """Return the outputs of words and of entities separately.

        hidden_states are the words', entity_hidden_states the entities', (sequences, entities, hidden) each. In
        attentions the entities follow the words, (sequences, heads, length + entities, length + entities).
        """
        if not isinstance(inputs, WordAndEntityInput):
            encoded = super().restore(run, inputs, state)
            encoded.traced["entity_hidden_states"] = None
            return encoded
        entities, length, trace = inputs.entities, inputs.packed.shape[1], run.trace
        rows = entities.rows
        words, entities.hidden = split_rows(run, state, first_rows=rows.words, second_rows=rows.entities)
        traced: dict[str, tuple | None] = dict.fromkeys(("hidden_states", "entity_hidden_states", "attentions"))
        if trace.states is not None:
            states, end = [entities.all_tokens.pad(run, each) for each in trace.states], entities.all_tokens.shape[1]
            for name, first, last in (("hidden_states", 0, length), ("entity_hidden_states", length, end)):
                traced[name] = tuple(functional.slice_columns(run, each, first=first, last=last) for each in states)
        if trace.attentions is not None:
            traced["attentions"] = tuple(entities.all_tokens.pad_attention(run, each) for each in trace.attentions)
        return Encoded(run, inputs.packed, inputs, words, traced)


def _pack(spec: EncoderSpec, packed: PackedBatch, ids: np.ndarray, attention_mask: ArrayLike | None,
          token_type_ids: ArrayLike | None, position_ids: ArrayLike | None) -> Entities:  # fmt: skip
    mask, types = mask_and_types(ids, attention_mask, token_type_ids, kind="entity_")
    kept = np.ones_like(mask) if packed.keeps_padding else mask
    check_range("entity_ids", ids, kept, spec.details.vocab_size, "entities")
    if spec.type_vocab_size:
        check_range("entity_token_type_ids", types, kept, spec.type_vocab_size, "token types")
    if position_ids is None:
        raise ValueError("entity_ids is given without entity_position_ids, the positions of the entities' tokens")
    name, batch = "entity_position_ids", PackedBatch(kept, mask)
    positions = integer_batch(name, position_ids, ("sequences", "entities", "tokens"))
    if positions.shape[:2] != ids.shape:
        raise ValueError(f"{name} has shape {positions.shape}, expected {(*ids.shape, 'tokens')} as entity_ids has")
    check_range(name, positions, kept[:, :, None] & (positions != -1), spec.max_positions, "positions")
    positions = batch.strip(positions)
    used = np.flatnonzero((positions >= 0).any(axis=0))  # columns up to the last one that any mention uses stay
    all_tokens = PackedBatch(np.hstack([packed.stays, kept]), np.hstack([packed.is_real, mask]))
    columns = np.broadcast_to(np.arange(all_tokens.shape[1]), all_tokens.shape)
    is_word = all_tokens.strip(columns) < packed.shape[1]
    return Entities(
        ids=batch.strip(ids),
        token_type_ids=batch.strip(types),
        position_ids=positions[:, : used[-1] + 1] if used.size else np.full((len(positions), 1), -1),
        batch=batch,
        all_tokens=all_tokens,
        rows=TokenRows(np.flatnonzero(is_word), np.flatnonzero(~is_word)),
        cu_seqlens=all_tokens.cu_seqlens,
        key_mask=all_tokens.key_mask(),
    )
