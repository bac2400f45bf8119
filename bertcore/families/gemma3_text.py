"""The text model of Gemma 3 (arXiv:2503.19786) and, with bidirectional attention, EmbeddingGemma (arXiv:2509.20354).

Root-mean-square norms, which multiply by 1 + weight, come before and after attention and feed-forward; queries and keys
are normalised before their rotation; embeddings are multiplied by the square root of their width. Some layers attend to
all tokens, the others to a window, each kind with its own theta.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.families.eurobert import EUROBERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import HeadSpec, register
from bertcore.models.spec import GLOBAL, LOCAL, MOST_LAYERS, MOST_POSITIONS, ConfigReader, by_kind, standard_spec
from bertcore.nn.layers import ShiftedRMSNorm
from bertcore.nn.spec import PARTS, EncoderSpec

KEYS = {
    "hidden_act": "hidden_activation",
    "layer_norm_eps": "rms_norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
}
DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
    "intermediate_size": 9216, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ATTENTION = frozenset({"query", "key", "value", "attention_output"})


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a Gemma 3 text config, with the keys of transformers 5 or older ones."""
    read = ConfigReader(config, DEFAULTS)
    read.require(attn_logit_softcapping=None, final_logit_softcapping=None)
    layers = read.size("num_hidden_layers", most=MOST_LAYERS)
    every = read.size("sliding_window_pattern", 6)
    kinds = [LOCAL if (index + 1) % every else GLOBAL for index in range(layers)]
    kinds = read.choices("layer_types", kinds, GLOBAL, LOCAL)
    longest = read.size("max_position_embeddings", 131_072, most=MOST_POSITIONS)
    is_causal = not read.flag("use_bidirectional_attention", False)
    tokens = (read.size if is_causal else read.count)("sliding_window", 4096)
    window = (tokens - 1, 0) if is_causal else (tokens // 2, tokens // 2)
    scalar = read.number("query_pre_attn_scalar", 256)
    if scalar < 1e-3:
        raise ValueError(f"config: query_pre_attn_scalar is {scalar}, expected at least 0.001")
    thetas = {GLOBAL: read.number("rope_theta", 1_000_000.0), LOCAL: read.number("rope_local_base_freq", 10_000.0)}
    older, ropes = read.section("rope_scaling"), read.sections("rope_parameters")
    if older.has_keys:  # of global layers; transformers ignores a type that is not called rope_type
        older.require(type=config["rope_scaling"].get("rope_type") or "default", **dict.fromkeys(ropes))
        ropes[GLOBAL] = older
    layer = {
        "norm": ShiftedRMSNorm,
        "norm_first": True,
        "gate": "first",
        "num_key_value_heads": read.size("num_key_value_heads", 4),
        "head_dim": read.size("head_dim", 256),
        "scale": scalar**-0.5,
        "is_causal": is_causal,
        "without_bias": PARTS - (ATTENTION if read.flag("attention_bias", False) else frozenset()),
    }
    return standard_spec(
        config,
        keys=KEYS,
        defaults=DEFAULTS,
        layer=layer,
        each_layer=by_kind(kinds, ropes, thetas, window, longest),
        type_vocab_size=0,
        longest_text=longest,
        embedding_scale=read.size("hidden_size") ** 0.5,
        without_bias=frozenset({"final_norm"}),
        classifier_dropout=0.0,
        is_relative=True,
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a Gemma 3 config; a sequence is classified by its last word."""
    return {
        "causal_lm": LanguageModelSpec("lm_head", tied_bias=None, predicts_next=True),
        "sequence_classification": ClassifierSpec("score", "last_word", without_bias=frozenset({"output"})),
    }


LAYER_NAMES = {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
GEMMA3 = register(
    replace(
        EUROBERT,
        model_type="gemma3_text",
        architecture="Gemma3",
        endings={
            "Model": "TextModel",
            "LMHeadModel": "ForCausalLM",
            "ForSequenceClassification": "TextForSequenceClassification",
        },
        spec_from_config=spec,
        heads=heads,
        name_rules=replace(EUROBERT.name_rules, heads=("lm_head.", "score."), buffers=("inv_freq",)),
        layer_names=EUROBERT.layer_names | {part: f"layers.{{layer}}.{name}" for part, name in LAYER_NAMES.items()},
        code=(),
    )
)
