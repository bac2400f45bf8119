"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500), jina-embeddings-v5 and UltraBERT.

These are Llama's layers with bidirectional attention: root-mean-square norms come first, groups of query heads
share keys and values, positions are rotary, and feed-forwards are gated with SiLU.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bertcore.checkpoint import Adapters, NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import Family, HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import (
    GLOBAL,
    LOCAL,
    MOST_LAYERS,
    MOST_POSITIONS,
    ConfigReader,
    by_kind,
    rotary_of_all_layers,
    standard_spec,
)
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
    layer = {
        "norm": RMSNorm,
        "norm_first": True,
        "gate": "first",
        "num_key_value_heads": read.size("num_key_value_heads", heads),
        "head_dim": read.size("head_dim", max(width // heads, 1)),
        "without_bias": NORMS
        | frozenset(() if read.flag("attention_bias", False) else ATTENTION)
        | frozenset(() if read.flag("mlp_bias", False) else FEED_FORWARD),
    }
    return standard_spec(
        config,
        keys=KEYS,
        defaults=defaults,
        layer=layer,
        each_layer=each_layer or rotary_of_all_layers(read, 10_000.0),
        type_vocab_size=0,
        longest_text=read.size("max_position_embeddings", most=MOST_POSITIONS),
        classifier_dropout=0.0,
        without_bias=frozenset({"final_norm"}),
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
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
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            attention_output="self_attn.o_proj",
            attention_norm="input_layernorm",
            gate="mlp.gate_proj",
            expand="mlp.up_proj",
            contract="mlp.down_proj",
            feed_forward_norm="post_attention_layernorm",
        ),
        pooler=None,
        code=published_code(
            *("modeling_eurobert", "configuration_eurobert"),
            repositories=("EuroBERT/EuroBERT-210m", "EuroBERT/EuroBERT-610m", "EuroBERT/EuroBERT-2.1B"),
        ),
    )
)


# jina-embeddings-v5-text-nano (arXiv:2602.15547): EuroBERT with an adapter per task, in PEFT's files.

JINA_KEYS = frozenset({"task_names", "auto_map"})


def jina_adapters(read: ConfigReader) -> Adapters:
    """Return the adapters of the tasks in task_names, each in a folder of that name."""
    tasks = read.names("task_names")
    for task in tasks:
        if not re.fullmatch(r"\w[\w.-]*", task):
            raise ValueError(f"config: task_names has {task!r}, expected plain folder names")
    return Adapters(tasks, folder="adapters")


def jina_config_to_save(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    """Return a EuroBERT config without adapters, as one of them may be merged into the weights."""
    return {key: value for key, value in config.items() if key not in JINA_KEYS} | {"model_type": "eurobert"}


JINA_EMBEDDINGS_V5 = register(
    replace(
        EUROBERT,
        model_type="jina_embeddings_v5",
        adapters=jina_adapters,
        config_to_save=jina_config_to_save,
        code=published_code(
            *("modeling_jina_embeddings_v5", "configuration_jina_embeddings_v5"),
            repositories=("jinaai/jina-embeddings-v5-text-nano",),
        ),
    )
)


# UltraBERT: EuroBERT's layers of two kinds.

ULTRABERT_DEFAULTS = DEFAULTS | {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "max_position_embeddings": 32768, "layer_norm_eps": 1e-6, "pad_token_id": 0,
}  # fmt: skip
EVERY = 3  # every third layer attends to all tokens


def ultrabert_spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of an UltraBERT config: some layers attend to all tokens, others to a window.

    Windows and thetas are given by the kind of layer or (in older configs) by layer.
    """
    read = ConfigReader(config, ULTRABERT_DEFAULTS)
    layers = read.size("num_hidden_layers", most=MOST_LAYERS)
    windows, thetas = (read.numbers(key, layers) for key in ("attention_windows", "rope_theta"))
    if any(window is not None and window != int(window) for window in windows):
        raise ValueError(f"config: attention_windows is {list(windows)!r:.200}, expected whole numbers of tokens")
    kinds = [LOCAL if (index + 1) % EVERY else GLOBAL for index in range(layers)]
    if windows:
        kinds = [LOCAL if window else GLOBAL for window in windows]
    kinds = read.choices("layer_types", kinds, GLOBAL, LOCAL)
    window = int(next(filter(None, windows), read.size("sliding_window", 128)))
    sections = read.section("rope_scaling", "rope_parameters")
    theta_of = {GLOBAL: 10_000.0 if sections.has_keys else 2_560_000.0, LOCAL: 10_000.0}
    if not sections.has_keys:
        theta_of |= {kind: theta for kind, theta in zip(kinds, thetas, strict=False) if theta is not None}
    ropes, longest = read.sections("rope_scaling", "rope_parameters"), read.size("max_position_embeddings")
    each_layer = by_kind(kinds, ropes, theta_of, (window, window), longest)
    found = spec(config, defaults=ULTRABERT_DEFAULTS, each_layer=each_layer)
    return replace(found, is_relative=True, classifier_dropout=read.rate("classifier_dropout", 0.0))


def ultrabert_heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of an UltraBERT config; the language model's transform has two linear maps."""
    sources = {"cls": "first", "mean": "mean"}
    source = sources[read.choice("classifier_pooling", "cls", *sources)]
    return {
        "masked_lm": LanguageModelSpec(
            "cls",
            None,
            transform="head.linear2",
            activation="gelu_tanh",
            before="head.linear1",
            before_size=read.size("prediction_head_size", 768),
            without_bias=frozenset({"transform"}),
        ),
        "sequence_classification": ClassifierSpec("classifier", source),
        "token_classification": ClassifierSpec("classifier", "tokens"),
        "question_answering": ClassifierSpec("qa_outputs", "tokens", dropout=0.0),
    }


ULTRABERT = register(
    replace(
        EUROBERT,
        model_type="ultrabert",
        architecture="Ultrabert",
        spec_from_config=ultrabert_spec,
        heads=ultrabert_heads,
        name_rules=replace(
            EUROBERT.name_rules,
            prefix="ultrabert.",
            heads=("head.", "cls.", "classifier.", "qa_outputs."),
            tied=(("cls.weight", "embed_tokens.weight"),),
        ),
        code=(),
    )
)
