"""Jina embeddings v3 (Sturua et al. 2024, arXiv:2409.10173): XLM-R with rotary positions and an adapter per task.

Published files call it "xlm-roberta-flash"; transformers has it without the adapters.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import Adapters
from bertcore.checkpoint.parameters import INDEX_BUFFERS, LATER_MODULES
from bertcore.families import roberta
from bertcore.families.roberta import XLM_ROBERTA
from bertcore.models.registry import HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import ConfigReader, rotary_of_all_layers, standard_spec, without_older_keys
from bertcore.nn.spec import EncoderSpec

# Keys that only published configs have, including those of adapters.
OLDER = frozenset(
    (
        *("auto_map", "position_embedding_type", "rotary_emb_base", "rope_scaling", "use_flash_attn"),
        *("lora_adaptations", "lora_rank", "lora_alpha", "lora_dropout_p", "lora_main_params_trainable"),
        *("load_trained_adapters", "task_instructions"),
    )
)
DEFAULTS = {
    "vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}  # fmt: skip


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    read = ConfigReader(config, DEFAULTS)
    theta = read.number("rotary_emb_base", 20_000.0)
    return standard_spec(
        config,
        defaults=DEFAULTS,
        position_embedding_type="rotary",
        each_layer=rotary_of_all_layers(read, theta),
        longest_text=read.size("max_position_embeddings"),
    )


def config_to_save(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    """Return the config without adapters, as one of them may be merged into the weights."""
    return {**without_older_keys(config, spec, OLDER), "model_type": "jina_embeddings_v3"}


def adapters(read: ConfigReader) -> Adapters:
    """Return the adapters of the tasks in lora_adaptations."""
    return Adapters(read.names("lora_adaptations"), read.number("lora_alpha", 1.0) / read.size("lora_rank", 4))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return XLM-R's heads except multiple choice."""
    return {task: head for task, head in roberta.heads(read).items() if task != "multiple_choice"}


JINA_EMBEDDINGS_V3 = register(
    replace(
        XLM_ROBERTA,
        model_type="jina_embeddings_v3",
        aliases=("xlm-roberta-flash",),
        architecture="JinaEmbeddingsV3",
        spec_from_config=spec,
        heads=heads,
        adapters=adapters,
        config_to_save=config_to_save,
        name_rules=replace(
            XLM_ROBERTA.name_rules,
            buffers=("inv_freq", *INDEX_BUFFERS),
            modules=(
                *LATER_MODULES,
                ((".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."), ".mixer.Wqkv."),
                (".self_attn.o_proj.", ".mixer.out_proj."),
            ),
        ),
        encoder_names=XLM_ROBERTA.encoder_names | {"embeddings_norm": "emb_ln"},
        layer_names=in_each_layer(
            "encoder.layers.{layer}.",
            qkv="mixer.Wqkv",
            attention_output="mixer.out_proj",
            attention_norm="norm1",
            expand="mlp.fc1",
            contract="mlp.fc2",
            feed_forward_norm="norm2",
        ),
        code=published_code(
            *("modeling_lora", "modeling_xlm_roberta", "configuration_xlm_roberta"),
            repositories=("jinaai/xlm-roberta-flash-implementation",),
        ),
    )
)
