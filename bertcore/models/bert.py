"""BERT (Devlin et al. 2018, arXiv:1810.04805) and every checkpoint of its shape: mBERT, MiniLM, SciBERT, ..."""

from collections.abc import Mapping
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.models.registry import Family, register
from bertcore.models.spec import MOST_LAYERS, ConfigReader, EncoderSpec

NAME_RULES = NameRules(
    prefix="bert.",
    heads=("pooler.", "cls.predictions.", "cls.seq_relationship.", "classifier.", "qa_outputs."),
    tied=(
        ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)


def spec_from_config(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a BERT config; absent keys mean BERT-base, as in transformers."""
    read = ConfigReader(config)
    read.unsupported("position_embedding_type", "absolute", "absolute")
    read.unsupported("is_decoder", False, False)
    vocab_size = read.size("vocab_size", 30522)
    return EncoderSpec(
        vocab_size=vocab_size,
        type_vocab_size=read.size("type_vocab_size", 2),
        max_positions=read.size("max_position_embeddings", 512),
        hidden_size=read.size("hidden_size", 768),
        intermediate_size=read.size("intermediate_size", 3072),
        num_layers=read.size("num_hidden_layers", 12, most=MOST_LAYERS),
        num_heads=read.size("num_attention_heads", 12),
        activation=read.activation("hidden_act", "gelu"),
        layer_norm_eps=read.number("layer_norm_eps", 1e-12),
        initializer_range=read.number("initializer_range", 0.02),
        pad_token_id=read.index("pad_token_id", 0, vocab_size),
        tied_decoder=read.flag("tie_word_embeddings", True),
    )


register(
    Family(
        model_type="bert",
        spec_from_config=spec_from_config,
        name_rules=NAME_RULES,
        encoder_names={
            "word_embeddings": "embeddings.word_embeddings",
            "position_embeddings": "embeddings.position_embeddings",
            "type_embeddings": "embeddings.token_type_embeddings",
            "embeddings_norm": "embeddings.LayerNorm",
            "pooler": "pooler.dense",
        },
        layer_names={
            "query": "encoder.layer.{layer}.attention.self.query",
            "key": "encoder.layer.{layer}.attention.self.key",
            "value": "encoder.layer.{layer}.attention.self.value",
            "attention_output": "encoder.layer.{layer}.attention.output.dense",
            "attention_norm": "encoder.layer.{layer}.attention.output.LayerNorm",
            "expand": "encoder.layer.{layer}.intermediate.dense",
            "contract": "encoder.layer.{layer}.output.dense",
            "feed_forward_norm": "encoder.layer.{layer}.output.LayerNorm",
        },
        head_names={
            "transform": "cls.predictions.transform.dense",
            "transform_norm": "cls.predictions.transform.LayerNorm",
            "decoder": "cls.predictions.decoder",
            "decoder_bias": "cls.predictions.bias",
        },
    )
)
