"""The encoder of families with entities (LUKE): sequences of words and then entities."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.families.luke.blocks import EntityAwareAttention, EntityEmbeddings, EntityInput, TokenRows
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.inputs import check_range, integer_batch, mask_and_types
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn import functional
from bertcore.nn.encoder import EncoderLayer, SelfAttention
from bertcore.nn.packing import PackedBatch
from bertcore.tape import value_of

INPUTS = ("entity_ids", "entity_attention_mask", "entity_token_type_ids", "entity_position_ids")


class WordAndEntityEncoder(Encoder):
    """An encoder whose sequences are words and then entities.

    Where there are entities, Trace.extras["entities"] is their last hidden state, (entities, hidden), and
    EncoderInput.extras["entities"] an EntityInput.
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        super().__init__(family, spec, prefix=prefix, pooler=pooler)
        names = {part: prefix + name for part, name in family.encoder_names.items()}
        self.entity_embeddings = EntityEmbeddings(names, spec)

    def _layer(self, family: Family, names: Mapping[str, str]) -> EncoderLayer:
        attention = EntityAwareAttention if self.spec.details.aware_attention else SelfAttention
        return EncoderLayer(names, self.spec, attention)

    def own_inputs(
        self,
        packed: PackedBatch,
        entity_ids: Any = None,
        entity_attention_mask: Any = None,
        entity_token_type_ids: Any = None,
        entity_position_ids: Any = None,
    ) -> Mapping[str, EntityInput]:
        """The entities of a call, checked and packed.

        Args:
            entity_ids: (sequences, entities) integers; None for a call without entities.
            entity_attention_mask: 1 for entities, 0 for padding, of the same shape; all are entities by default.
            entity_token_type_ids: of the same shape, 0 by default.
            entity_position_ids: the positions of each entity's tokens in the text, -1 where there are no more,
                (sequences, entities, tokens).

        Raises:
            TypeError, ValueError: which argument is wrong, where, and what was expected.
        """
        others = (entity_attention_mask, entity_token_type_ids, entity_position_ids)
        if entity_ids is None:
            given = [name for name, value in zip(INPUTS[1:], others, strict=True) if value is not None]
            if given:
                raise ValueError(f"{given[0]} is given without entity_ids")
            return {}
        ids = integer_batch("entity_ids", entity_ids, ("sequences", "entities"))
        if len(ids) != packed.shape[0]:
            raise ValueError(f"entity_ids has {len(ids)} sequences, expected {packed.shape[0]} as input_ids has")
        return {"entities": _pack(self.spec, packed, ids, *others)}

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        entities = inputs.extras.get("entities")
        if entities is None:
            return super()._encode(inputs, trace)
        rows = entities.rows
        embedded = self.embeddings(inputs), self.entity_embeddings(entities)
        joined = functional.merge_rows(*embedded, first_rows=rows.words, second_rows=rows.entities)
        shared = rows if self.spec.details.aware_attention else None
        hidden = self._through_layers(joined, entities.cu_seqlens, entities.key_mask, trace, shared)
        trace.extras["entities"] = functional.take_rows(hidden, rows=rows.entities)
        return functional.take_rows(hidden, rows=rows.words)

    def traced(self, packed: PackedBatch, inputs: EncoderInput, trace: Trace) -> dict[str, tuple | None]:
        """As Encoder's; attentions are of the words and then the entities."""
        entities = inputs.extras.get("entities")
        if entities is None:
            return super().traced(packed, inputs, trace)
        length, all_tokens = packed.shape[1], entities.all_tokens
        outputs: dict[str, tuple | None] = {}
        if trace.hidden_states is not None:
            states = [all_tokens.pad(value_of(state)) for state in trace.hidden_states]
            outputs["hidden_states"] = tuple(state[:, :length] for state in states)
            outputs["entity_hidden_states"] = tuple(state[:, length:] for state in states)
        if trace.attentions is not None:
            outputs["attentions"] = tuple(map(all_tokens.pad_attention, trace.attentions))
        return outputs


def _pack(
    spec: EncoderSpec, packed: PackedBatch, ids: np.ndarray, attention_mask: Any, token_type_ids: Any, position_ids: Any
) -> EntityInput:
    mask, types = mask_and_types(ids, attention_mask, token_type_ids, kind="entity_")
    kept = np.ones_like(mask) if packed.keeps_padding else mask
    check_range("entity_ids", ids, kept, spec.details.vocab_size, "entities")
    if spec.type_vocab_size:
        check_range("entity_token_type_ids", types, kept, spec.type_vocab_size, "token types")
    batch = PackedBatch(kept, mask)
    positions = _positions(spec, ids, kept, position_ids)
    all_tokens = PackedBatch(np.hstack([packed.stays, kept]), np.hstack([packed.is_real, mask]))
    columns = np.broadcast_to(np.arange(all_tokens.shape[1]), all_tokens.shape)
    is_word = all_tokens.strip(columns) < packed.shape[1]
    key_mask = all_tokens.key_mask()
    device = kernels.to_backend
    return EntityInput(
        ids=device(batch.strip(ids)),
        token_type_ids=device(batch.strip(types)),
        position_ids=device(_without_empty_end(batch.strip(positions))),
        batch=batch,
        all_tokens=all_tokens,
        rows=TokenRows(device(np.flatnonzero(is_word)), device(np.flatnonzero(~is_word))),
        cu_seqlens=device(all_tokens.cu_seqlens),
        key_mask=None if key_mask is None else device(key_mask),
    )


def _positions(spec: EncoderSpec, ids: np.ndarray, kept: np.ndarray, position_ids: Any) -> np.ndarray:
    if position_ids is None:
        raise ValueError("entity_ids is given without entity_position_ids, the positions of the entities' tokens")
    name = "entity_position_ids"
    positions = integer_batch(name, position_ids, ("sequences", "entities", "tokens"))
    if positions.shape[:2] != ids.shape:
        raise ValueError(f"{name} has shape {positions.shape}, expected {(*ids.shape, 'tokens')} as entity_ids has")
    check_range(name, positions, kept[:, :, None] & (positions != -1), spec.max_positions, "positions")
    return positions


def _without_empty_end(positions: np.ndarray) -> np.ndarray:
    """The positions up to the last column that any mention uses, at least one column."""
    used = np.flatnonzero((positions >= 0).any(axis=0))
    if not used.size:
        return np.full((len(positions), 1), -1)
    return positions[:, : used[-1] + 1]
