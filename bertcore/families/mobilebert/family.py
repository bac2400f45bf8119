"""MobileBERT (Sun et al. 2020, arXiv:2004.02984): BERT, thin and deep, each layer narrower inside."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.families.bert import BERT
from bertcore.families.mobilebert.blocks import (
    BottleneckAttention,
    BottleneckDetails,
    BottleneckLayer,
    NoNorm,
    TrigramEmbeddings,
)
from bertcore.models.registry import HeadSpec, register
from bertcore.models.spec import MOST_LAYERS, ConfigReader, standard_spec
from bertcore.nn.embeddings import FirstToken, Pooler
from bertcore.nn.layers import LayerNorm
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec

DEFAULTS = {
    "hidden_size": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.0,
}


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a MobileBERT config; absent keys mean those of mobilebert-uncased."""
    read = ConfigReader(config)
    hidden, heads = read.size("hidden_size", 512), read.size("num_attention_heads", 4)
    layers = read.size("num_hidden_layers", 24, most=MOST_LAYERS)
    details = BottleneckDetails(
        hidden_size=hidden,
        has_bottleneck=read.flag("use_bottleneck", True),
        attends_in_bottleneck=read.flag("use_bottleneck_attention", False),
        shares_query_key=read.flag("key_query_shared_bottleneck", True),
        num_feed_forwards=read.size("num_feedforward_networks", 4, most=MOST_LAYERS // layers),
        has_trigrams=read.flag("trigram_input", True),
        has_pooler_map=read.flag("classifier_activation", True),
    )
    narrow = read.size("intra_bottleneck_size", 128) if details.has_bottleneck else hidden
    embedding_size = read.size("embedding_size", 128)
    if details.has_bottleneck and narrow != hidden and not (details.attends_in_bottleneck or details.shares_query_key):
        raise ValueError(
            f"config: intra_bottleneck_size is {narrow}, expected hidden_size {hidden}: "
            "use_bottleneck_attention and key_query_shared_bottleneck are both false"
        )
    if embedding_size > hidden:
        raise ValueError(f"config: embedding_size is {embedding_size}, expected at most hidden_size {hidden}")
    if narrow % heads:
        key = "intra_bottleneck_size" if details.has_bottleneck else "hidden_size"
        raise ValueError(f"config: {key} is {narrow}, expected a multiple of num_attention_heads {heads}")
    norm = read.choice("normalization_type", "no_norm", "no_norm", "layer_norm")
    return standard_spec(
        config,
        keys={"bottleneck_size": "intra_bottleneck_size"},
        num_layers=layers,
        type_vocab_size=read.size("type_vocab_size", 2),
        embedding_size=embedding_size,
        layer={
            "hidden_size": narrow,
            "norm": NoNorm if norm == "no_norm" else LayerNorm,
            "attention_output_dropout": 0.0 if details.has_bottleneck else None,
        },
        is_relative=details.has_trigrams,
        details=details,
        defaults=DEFAULTS,
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """The heads of a MobileBERT config: BERT's, but embeddings are narrower than the language model's transform."""
    found = BERT.heads(read)
    activation = read.activation("hidden_act", "relu")
    return found | {"masked_lm": replace(found["masked_lm"], activation=activation, rest="cls.predictions.dense")}


def pooler(name: str, spec: EncoderSpec) -> Block:
    """The pooler of the base model."""
    return Pooler(name, spec) if spec.details.has_pooler_map else FirstToken()


MOBILEBERT = register(
    replace(
        BERT,
        model_type="mobilebert",
        architecture="MobileBert",
        spec_from_config=spec,
        heads=heads,
        name_rules=replace(BERT.name_rules, prefix="mobilebert."),
        encoder_names=BERT.encoder_names | {"embeddings_projection": "embeddings.embedding_transformation"},
        layer_names=BERT.layer_names
        | {
            "into": "encoder.layer.{layer}.bottleneck.input",
            "into_attention": "encoder.layer.{layer}.bottleneck.attention",
            "stacked": "encoder.layer.{layer}.ffn.{{index}}",
            "out": "encoder.layer.{layer}.output.bottleneck",
        },
        embeddings=TrigramEmbeddings,
        attention=BottleneckAttention,
        layer=BottleneckLayer,
        pooler=pooler,
    )
)
