"""LUKE (Yamada et al. 2020, arXiv:2010.01057) and mLUKE (Ri et al. 2021, arXiv:2110.08151): words and entities."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families import roberta
from bertcore.families.luke import models
from bertcore.families.luke.adapter import INPUTS, WordAndEntityAdapter
from bertcore.families.luke.blocks import EntityAwareAttention, EntitySpec, WordAndEntityEmbeddings
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import POOLED_HEADS, HeadSpec, register
from bertcore.models.spec import ConfigReader
from bertcore.nn.spec import EncoderSpec


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a LUKE config."""
    read = ConfigReader(config)
    entities = EntitySpec(
        vocab_size=read.size("entity_vocab_size", 500000),
        embedding_size=read.size("entity_emb_size", 256),
        aware_attention=read.flag("use_entity_aware_attention", True),
    )
    return roberta.spec(config, vocab_size=50267, details=entities)


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
    classifier = ClassifierSpec("classifier", "entities", dropout=read.rate("hidden_dropout_prob", 0.1))
    return POOLED_HEADS | {
        "masked_lm": roberta.heads(read)["masked_lm"],
        "masked_entities": entities,
        "entity_classification": classifier,
        "entity_pair_classification": replace(classifier, without_bias=frozenset({"output"})),
        "entity_span_classification": classifier,
    }


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
        attention=EntityAwareAttention,
        adapter=WordAndEntityAdapter,
        embeddings=WordAndEntityEmbeddings,
        inputs=INPUTS,
        models={
            "AutoModel": models.WordAndEntityModel,
            "AutoModelForMaskedLM": models.WordAndEntityMaskedLM,
            "AutoModelForEntityClassification": models.LukeForEntityClassification,
            "AutoModelForEntityPairClassification": models.LukeForEntityPairClassification,
            "AutoModelForEntitySpanClassification": models.LukeForEntitySpanClassification,
        },
    )
)
