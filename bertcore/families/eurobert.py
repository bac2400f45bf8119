"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): Llama's layers with bidirectional attention.

Root-mean-square norms come first, groups of query heads share keys and values, positions are rotary, and feed-forwards
are gated with SiLU.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import Family, HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import MOST_POSITIONS, ConfigReader, rotary_of_all_layers, standard_spec
from bertcore.nn.layers import RMSNorm
from bertcore.nn.spec import EncoderSpec, LayerSpec

KEYS = {"layer_norm_eps": "rms_norm_eps", "attention_probs_dropout_prob": "attention_dropout"}
DEFAULTS = {
    "vocab_size": 128256, "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 8192,
    "hidden_act": "silu", "layer_norm_eps": 1e-5, "pad_token_id": 128001, "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ATTENTION, FEED_FORWARD = ("query", "key", "value", "attention_output"), ("gate", "expand", "contract")
NORMS = frozenset({"attention_norm", "feed_forward_norm"})


def spec(
    config: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] = MappingProxyType(DEFAULTS),
    each_layer: Callable[[int, LayerSpec], LayerSpec] | None = None,
) -> EncoderSpec:
    """Return the spec of a EuroBERT config, with the keys of transformers 5 or older ones.

    `defaults` and `each_layer` are as for `standard_spec`; `each_layer` then sets the rotary positions.
    """
    read = ConfigReader(config, DEFAULTS | defaults)
    width, heads = read.size("hidden_size"), read.size("num_attention_heads")
    groups = read.size("num_key_value_heads", heads)
    head_dim = read.size("head_dim", max(width // heads, 1))
    longest = read.size("max_position_embeddings", most=MOST_POSITIONS)
    layer = {
        "norm": RMSNorm,
        "norm_first": True,
        "gate": "first",
        "num_key_value_heads": groups,
        "head_dim": head_dim,
        "without_bias": NORMS
        | frozenset(() if read.flag("attention_bias", False) else ATTENTION)
        | frozenset(() if read.flag("mlp_bias", False) else FEED_FORWARD),
    }
    fixed: dict[str, Any] = {"type_vocab_size": 0, "max_positions": 0, "longest_text": longest}
    fixed |= {"classifier_dropout": 0.0, "without_bias": frozenset({"final_norm"})}
    if each_layer is None:
        layer["rotary"] = rotary_of_all_layers(read, head_dim, 10_000.0)
    else:
        fixed["each_layer"] = each_layer
    return standard_spec(config, keys=KEYS, defaults=defaults, layer=layer, **fixed)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a EuroBERT config."""
    sources = {"bos": "first", "mean": "mean", "late": "mean_of_dense"}
    source = sources[read.choice("classifier_pooling", "late", *sources)]
    return {
        "masked_lm": LanguageModelSpec("lm_head", "lm_head.bias" if read.flag("mlp_bias", False) else None),
        "sequence_classification": ClassifierSpec("classifier", source, dense="dense", activation="gelu"),
        "token_classification": ClassifierSpec("classifier", "tokens"),
    }


EUROBERT = register(
    Family(
        model_type="eurobert",
        architecture="EuroBert",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="model.",
            heads=("lm_head.", "dense.", "classifier."),
            tied=(("lm_head.weight", "embed_tokens.weight"),),
            anchor="embed_tokens.weight",
            endings=(),
            buffers=("rotary_emb.inv_freq",),
        ),
        encoder_names={"word_embeddings": "embed_tokens", "final_norm": "norm"},
        layer_names=in_each_layer(
            "layers.{layer}.",
            {
                "query": "self_attn.q_proj",
                "key": "self_attn.k_proj",
                "value": "self_attn.v_proj",
                "attention_output": "self_attn.o_proj",
                "attention_norm": "input_layernorm",
                "gate": "mlp.gate_proj",
                "expand": "mlp.up_proj",
                "contract": "mlp.down_proj",
                "feed_forward_norm": "post_attention_layernorm",
            },
        ),
        pooler=None,
        code=published_code(
            *("modeling_eurobert", "configuration_eurobert"),
            repositories=("EuroBERT/EuroBERT-210m", "EuroBERT/EuroBERT-610m", "EuroBERT/EuroBERT-2.1B"),
        ),
    )
)
