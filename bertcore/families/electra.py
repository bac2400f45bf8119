"""ELECTRA (Clark et al. 2020, arXiv:2003.10555), discriminator and generator: BERT, narrow embeddings, no pooler."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.pretraining import Discriminator
from bertcore.models.registry import TOKEN_HEADS, HeadSpec, discriminator_head, register, summary_head
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of an ELECTRA config; absent keys have ELECTRA-small's values."""
    return standard_spec(
        config,
        embedding_size=ConfigReader(config).size("embedding_size", 128),
        defaults={"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return ELECTRA's heads, including the discriminator's for replaced tokens and the generator's language model."""
    return TOKEN_HEADS | {
        "replaced_tokens": discriminator_head(read),
        "masked_lm": LanguageModelSpec(
            decoder="generator_lm_head",
            tied_bias="generator_lm_head.bias",
            transform="generator_predictions.dense",
            transform_norm="generator_predictions.LayerNorm",
            activation="gelu",
        ),
        "sequence_classification": ClassifierSpec(
            "classifier.out_proj", "first", dense="classifier.dense", activation="gelu"
        ),
        "multiple_choice": summary_head(read, "classifier", source="first", activation="gelu"),
    }


def generator(config: Mapping[str, Any], share: float = 0.25) -> Mapping[str, Any]:
    """Return a generator's config with a share of the heads, hidden size and feed-forward size (section 3.2)."""
    layers = spec(config).layers
    heads, width = layers[0].num_heads, layers[0].intermediate_size
    some = max(1, round(share * heads))
    sizes = {"num_attention_heads": some, "hidden_size": some * layers[0].head_size}
    return {**config, **sizes, "intermediate_size": max(1, round(share * width))}


ELECTRA = register(
    replace(
        BERT,
        model_type="electra",
        architecture="Electra",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="electra.",
            heads=("discriminator_", "generator_", "classifier.", "sequence_summary.", "qa_outputs."),
            tied=(("generator_lm_head.weight", "embeddings.word_embeddings.weight"),),
        ),
        encoder_names=BERT.encoder_names | {"embeddings_projection": "embeddings_project"},
        pooler=None,
        generator=generator,
        models={"AutoModelForPreTraining": Discriminator},
    )
)
