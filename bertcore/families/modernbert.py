"""ModernBERT (Warner et al. 2024, arXiv:2412.13663) and models like it: Ettin, mmBERT, gte-modernbert, Granite R2.

Norms come first and have no bias; the first layer has none before its attention. Feed-forwards are gated, positions
rotary. Some layers attend to all tokens, the others to a window, each kind with its own theta.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import Family, HeadSpec, in_each_layer, register
from bertcore.models.spec import GLOBAL, LOCAL, MOST_LAYERS, MOST_POSITIONS, ConfigReader, by_kind, standard_spec
from bertcore.nn.spec import EncoderSpec

KEYS = {"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}
SIZES = {"vocab_size": 50368, "intermediate_size": 1152, "num_hidden_layers": 22}
DEFAULTS = SIZES | {"layer_norm_eps": 1e-5, "pad_token_id": 50283}


def _without(flag: bool, *parts: str) -> frozenset[str]:
    """Return `parts`, or the empty set if `flag` says that they have biases."""
    return frozenset() if flag else frozenset(parts)


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a ModernBERT config; in older configs a null local theta means the global one."""
    read = ConfigReader(config)
    read.require(rope_scaling=None)
    layers = read.size("num_hidden_layers", DEFAULTS["num_hidden_layers"], most=MOST_LAYERS)
    every = read.size("global_attn_every_n_layers", 3)
    kinds = [LOCAL if index % every else GLOBAL for index in range(layers)]
    kinds = read.choices("layer_types", kinds, GLOBAL, LOCAL)
    longest = read.size("max_position_embeddings", 8192, most=MOST_POSITIONS)
    half = read.count("sliding_window", read.size("local_attention", 128) // 2)
    thetas = {GLOBAL: read.number("global_rope_theta", 160_000.0)}
    thetas[LOCAL] = read.number("local_rope_theta", thetas[GLOBAL] if "local_rope_theta" in config else 10_000.0)
    norm_bias, ropes = read.flag("norm_bias", False), read.sections("rope_parameters")
    of_its_kind = by_kind(kinds, ropes, thetas, (half, half), longest)
    without_bias = _without(norm_bias, "attention_norm", "feed_forward_norm")
    without_bias |= _without(read.flag("attention_bias", False), "qkv", "attention_output")
    without_bias |= _without(read.flag("mlp_bias", False), "expand", "contract")
    layer = {"norm_first": True, "gate": "first", "without_bias": without_bias}
    rate = read.rate("attention_dropout", 0.0)
    layer |= {"dropout": 0.0, "inner_dropout": read.rate("mlp_dropout", 0.0)}
    layer |= {"attention_dropout": rate, "attention_output_dropout": rate}
    fixed = {"type_vocab_size": 0, "longest_text": longest, "is_relative": True}
    fixed["without_bias"] = _without(norm_bias, "embeddings_norm", "final_norm")
    fixed["embedding_dropout"] = read.rate("embedding_dropout", 0.0)
    found = standard_spec(config, keys=KEYS, defaults=DEFAULTS, layer=layer, each_layer=of_its_kind, **fixed)
    first = replace(found.layers[0], absent=frozenset({"attention_norm"}))
    return replace(found, layers=(first, *found.layers[1:]))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a ModernBERT config, which all begin with a linear map, an activation and a norm."""
    activation = read.activation("classifier_activation", "gelu")
    has_bias, norm_bias = read.flag("classifier_bias", False), read.flag("norm_bias", False)
    without_bias = _without(has_bias, "dense") | _without(norm_bias, "norm")
    parts = {"dense": "head.dense", "activation": activation, "norm": "head.norm", "without_bias": without_bias}
    tokens = ClassifierSpec("classifier", "tokens", **parts, dense_dropout=0.0)
    pooling = {"cls": "first", "mean": "mean"}
    sequences = replace(tokens, source=pooling[read.choice("classifier_pooling", "cls", *pooling)])
    bias = "decoder.bias" if read.flag("decoder_bias", True) else None
    transform = {"transform": "head.dense", "transform_norm": "head.norm", "activation": activation}
    transform["without_bias"] = _without(has_bias, "transform") | _without(norm_bias, "transform_norm")
    return {
        "masked_lm": LanguageModelSpec("decoder", bias, **transform),
        "sequence_classification": sequences,
        "token_classification": tokens,
        "question_answering": tokens,
        "multiple_choice": sequences,
    }


MODERNBERT = register(
    Family(
        model_type="modernbert",
        architecture="ModernBert",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="model.",
            heads=("head.", "decoder.", "classifier."),
            tied=(("decoder.weight", "embeddings.tok_embeddings.weight"),),
            anchor="embeddings.tok_embeddings.weight",
            endings=(),
            buffers=("rotary_emb.inv_freq",),
        ),
        encoder_names={
            "word_embeddings": "embeddings.tok_embeddings",
            "embeddings_norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        layer_names=in_each_layer(
            "layers.{layer}.",
            attention_norm="attn_norm",
            qkv="attn.Wqkv",
            attention_output="attn.Wo",
            feed_forward_norm="mlp_norm",
            expand="mlp.Wi",
            contract="mlp.Wo",
        ),
        pooler=None,
    )
)
