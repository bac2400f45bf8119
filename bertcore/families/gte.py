"""GTE (Zhang et al. 2024, arXiv:2407.19669): gte-base and large-en-v1.5, gte-multilingual-base, arctic-embed-m-v2.0.

BERT with rotary positions and gated feed-forwards. Published files call it "new" ("gte" in arctic-embed) and stretch
positions by NTK's static rule; transformers calls it "gte" and has other rules.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.checkpoint.parameters import INDEX_BUFFERS
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import ConfigReader, rotary_of_all_layers, standard_spec, without_older_keys
from bertcore.nn.spec import EncoderSpec

COMMON = {"type_vocab_size": 1, "attention_probs_dropout_prob": 0.0}
DEFAULTS = COMMON | {"vocab_size": 250048, "max_position_embeddings": 8192, "pad_token_id": 1}
NEW_DEFAULTS = COMMON | {"vocab_size": 30528, "max_position_embeddings": 2048, "pad_token_id": None}
NEW_THETA = 10_000.0
# Keys that have the same value in all published checkpoints; others are not supported.
FIXED = {"layer_norm_type": "layer_norm", "pack_qkv": True}
FIXED |= dict.fromkeys(("logn_attention_scale", "logn_attention_clip1"), False)
# Keys that only published configs have.
OLDER = frozenset(("auto_map", "position_embedding_type", "rope_theta", "rope_scaling", *FIXED))


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a GTE config, or of a "new" one, whose absent keys have other defaults."""
    defaults = NEW_DEFAULTS if config.get("model_type") == "new" else DEFAULTS
    theta = NEW_THETA if config.get("model_type") == "new" else 160_000.0
    read = ConfigReader(config, defaults)
    read.require(**FIXED)
    return standard_spec(
        config,
        position_embedding_type="rope",
        defaults=defaults,
        layer={
            "gate": "second",
            "without_bias": frozenset({"expand"}),
            "inner_dropout": read.rate("hidden_dropout_prob", 0.1),
        },
        each_layer=rotary_of_all_layers(read, theta),
        longest_text=read.size("max_position_embeddings"),
    )


def config_to_save(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    """Return the config with the keys that "new" leaves out, whose defaults differ in "gte"."""
    if config.get("model_type") == "new":
        given = {key: value for key, value in config.items() if value is not None}
        config = {**NEW_DEFAULTS, "rope_theta": NEW_THETA, **given}
    return without_older_keys(config, spec, OLDER, model_type="gte")


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads; only sequence classifiers have a pooler."""
    return {
        "masked_lm": LanguageModelSpec(
            "lm_head.decoder", "lm_head.decoder.bias", "lm_head.dense", "lm_head.norm", activation="gelu"
        ),
        "sequence_classification": ClassifierSpec(
            "classifier", "first", dense="gte.pooler.dense", activation="tanh", dense_dropout=0.0
        ),
        "token_classification": ClassifierSpec("classifier", "tokens"),
    }


GTE = register(
    replace(
        BERT,
        model_type="gte",
        architecture="Gte",
        spec_from_config=spec,
        heads=heads,
        config_to_save=config_to_save,
        name_rules=NameRules(
            prefix="gte.",
            heads=("pooler.", "lm_head.", "classifier."),
            tied=(("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),),
            buffers=("inv_freq", *INDEX_BUFFERS),
            modules=(
                (".layers.", ".encoder.layer."),
                (".post_attention_layernorm.", ".attn_ln."),
                (".post_mlp_layernorm.", ".mlp_ln."),
                ((".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."), ".attention.qkv_proj."),
                (".self_attn.o_proj.", ".attention.o_proj."),
                ((".mlp.up_proj.", ".mlp.gate_proj."), ".mlp.up_gate_proj."),
                (".lm_head.layer_norm.", ".lm_head.norm."),
            ),
        ),
        layer_names=in_each_layer(
            "encoder.layer.{layer}.",
            qkv="attention.qkv_proj",
            attention_output="attention.o_proj",
            attention_norm="attn_ln",
            expand="mlp.up_gate_proj",
            contract="mlp.down_proj",
            feed_forward_norm="mlp_ln",
        ),
        pooler=None,
        aliases=("new",),
        code=(
            *("Alibaba-NLP/new-impl--modeling", "Alibaba-NLP/new-impl--configuration"),
            *published_code(
                *("modeling_hf_alibaba_nlp_gte", "configuration_hf_alibaba_nlp_gte"),
                repositories=("Snowflake/snowflake-arctic-embed-m-v2.0",),
            ),
        ),
    )
)
