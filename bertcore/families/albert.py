"""ALBERT (Lan et al. 2019, arXiv:1909.11942): BERT with narrow embeddings and layers that share their parameters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import POOLED_HEADS, HeadSpec, in_each_layer, register
from bertcore.models.spec import MOST_LAYERS, ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of an ALBERT config; absent keys have ALBERT-xxlarge's values."""
    read = ConfigReader(config)
    shared = _shared_layers(read)
    return standard_spec(
        config,
        embedding_size=read.size("embedding_size", 128),
        classifier_dropout=read.rate("classifier_dropout_prob", 0.1),
        projects_embeddings=True,
        num_layers=len(shared),
        shared_layers=shared,
        inner_layers=read.size("inner_group_num", 1),
        layer={"dropout": 0.0, "attention_output_dropout": read.rate("hidden_dropout_prob", 0.0)},
        defaults={
            "vocab_size": 30000,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    )


def _shared_layers(read: ConfigReader) -> tuple[int, ...]:
    """Return, for each layer of a pass, the number of the layer whose parameters it uses.

    A token passes num_hidden_layers groups, each of the num_hidden_groups about equally often; a group is
    inner_group_num layers with their own parameters.
    """
    inner = read.size("inner_group_num", 1, most=MOST_LAYERS)
    passes = read.size("num_hidden_layers", 12, most=MOST_LAYERS // inner)
    groups = read.size("num_hidden_groups", 1, most=passes)
    # In floating point, as in transformers: integer division would differ by one group for 18 layers in 14 groups.
    group_of = [int(index / (passes / groups)) for index in range(passes)]
    return tuple(group * inner + layer for group in group_of for layer in range(inner))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    parts = (f"predictions.{part}" for part in ("decoder", "bias", "dense", "LayerNorm"))
    return POOLED_HEADS | {
        "masked_lm": LanguageModelSpec(*parts, activation=read.activation("hidden_act", "gelu_new")),
        "sentence_order": ClassifierSpec("sop_classifier.classifier", "pooler"),
    }


ALBERT = register(
    replace(
        BERT,
        model_type="albert",
        architecture="Albert",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="albert.",
            heads=("pooler.", "predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
            tied=(
                ("predictions.decoder.weight", "embeddings.word_embeddings.weight"),
                ("predictions.decoder.bias", "predictions.bias"),
            ),
        ),
        encoder_names=BERT.encoder_names
        | {"embeddings_projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"},
        layer_names=in_each_layer(
            "encoder.albert_layer_groups.{layer}.albert_layers.{inner}.",
            query="attention.query",
            key="attention.key",
            value="attention.value",
            attention_output="attention.dense",
            attention_norm="attention.LayerNorm",
            expand="ffn",
            contract="ffn_output",
            feed_forward_norm="full_layer_layer_norm",
        ),
    )
)
