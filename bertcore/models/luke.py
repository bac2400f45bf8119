"""LUKE (Yamada et al. 2020, arXiv:2010.01057) and mLUKE (Ri et al. 2021, arXiv:2110.08151): RoBERTa over words and
entities."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import NameRules
from bertcore.heads.classifier import ClassifierSpec
from bertcore.heads.language_model import LanguageModelSpec
from bertcore.models import roberta
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.inputs import check_range, integer_batch, mask_and_types
from bertcore.models.registry import Family, HeadSpec, pooled_heads, register
from bertcore.models.spec import ConfigReader, EncoderSpec
from bertcore.nn import entity_functional, functional
from bertcore.nn.encoder import EncoderLayer, SelfAttention
from bertcore.nn.entities import EntityAwareAttention, EntityEmbeddings, EntityInput, EntitySpec, TokenRows
from bertcore.nn.packing import PackedBatch
from bertcore.tape import value_of


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a LUKE config."""
    read = ConfigReader(config)
    entities = EntitySpec(
        vocab_size=read.size("entity_vocab_size", 500000),
        embedding_size=read.size("entity_emb_size", 256),
        aware_attention=read.flag("use_entity_aware_attention", True),
    )
    return roberta.spec(config, default_vocab_size=50267, details=entities)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """The heads of a LUKE config.

    As in transformers 5 the words' decoder never shares the word embeddings: what tie_word_embeddings ties are the
    entities' decoder and table.
    """
    bias, transform = "entity_predictions.bias", "entity_predictions.transform"
    entities = LanguageModelSpec(
        decoder="entity_predictions.decoder",
        tied_bias=bias,
        transform=f"{transform}.dense",
        transform_norm=f"{transform}.LayerNorm",
        activation=read.activation("hidden_act", "gelu"),
        untied_bias=bias,
    )
    classifier = ClassifierSpec("classifier", "entities")
    return pooled_heads() | {
        "masked_lm": roberta.heads(read)["masked_lm"],
        "masked_entities": entities,
        "entity_classification": classifier,
        "entity_pair_classification": replace(classifier, bias=False),
        "entity_span_classification": classifier,
    }


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
        joined = entity_functional.merge_rows(*embedded, first_rows=rows.words, second_rows=rows.entities)
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


INPUTS = ("entity_ids", "entity_attention_mask", "entity_token_type_ids", "entity_position_ids")
ENTITIES = "entity_embeddings"

LUKE = register(
    replace(
        roberta.ROBERTA,
        model_type="luke",
        architecture="Luke",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="luke.",
            heads=("pooler.", "lm_head.", "entity_predictions.", "classifier.", "qa_outputs."),
            tied=(
                ("lm_head.decoder.bias", "lm_head.bias"),
                ("entity_predictions.decoder.weight", f"{ENTITIES}.entity_embeddings.weight"),
            ),
            untied=(("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),),
        ),
        encoder_names=roberta.ROBERTA.encoder_names
        | {
            "entity_embeddings": f"{ENTITIES}.entity_embeddings",
            "entity_projection": f"{ENTITIES}.entity_embedding_dense",
            "entity_position_embeddings": f"{ENTITIES}.position_embeddings",
            "entity_type_embeddings": f"{ENTITIES}.token_type_embeddings",
            "entity_embeddings_norm": f"{ENTITIES}.LayerNorm",
        },
        layer_names=roberta.ROBERTA.layer_names
        | {
            "word_to_entity_query": "encoder.layer.{layer}.attention.self.w2e_query",
            "entity_to_word_query": "encoder.layer.{layer}.attention.self.e2w_query",
            "entity_to_entity_query": "encoder.layer.{layer}.attention.self.e2e_query",
        },
        encoder=WordAndEntityEncoder,
        inputs=INPUTS,
    )
)
