"""The architectures of GGUF files that are encoders here, and their names of tensors and settings, both ways.

Tensors are named by the parts of a layer, which every family has (`Family.layer_names`): no family is listed twice.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.models.registry import Family
from bertcore.models.spec import ConfigReader
from bertcore.nn.spec import EncoderSpec

POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
RANK = 4
OUTER = {
    "word_embeddings": "token_embd",
    "type_embeddings": "token_types",
    "position_embeddings": "position_embd",
    "embeddings_norm": "token_embd_norm",
    "final_norm": "output_norm",
}
INNER = {
    "qkv": "attn_qkv",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attention_output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "second_norm": "attn_norm_2",
    "expand": "ffn_up",
    "plain_expand": "ffn_up",
    "gate": "ffn_gate",
    "contract": "ffn_down",
    "router": "ffn_gate_inp",
    "experts_expand": "ffn_up_exps",
    "experts_contract": "ffn_down_exps",
    "experts_bias": "ffn_down_exps",
}
NORMS = {True: ("attn_norm", "ffn_norm"), False: ("attn_output_norm", "layer_output_norm")}  # by LayerSpec.norm_first


@dataclass(frozen=True)
class Architecture:
    """One architecture of GGUF files.

    Attributes:
        model_types: the families that are written as it; the first one is read.
        config: the architecture's settings -> keys of that family's config beside the common ones.
        settings: an EncoderSpec -> its settings beside the common ones.
        heads: the names of a reranker's tensors -> the config's names of its head.
        eps: the setting of the norms' epsilon, and the config's key.
    """

    model_types: tuple[str, ...]
    config: Callable[[ConfigReader], dict[str, Any]]
    settings: Callable[[EncoderSpec], dict[str, Any]] = lambda spec: {}
    heads: Mapping[str, str] = field(default_factory=dict)
    eps: tuple[str, str] = ("attention.layer_norm_epsilon", "layer_norm_eps")


def _rotary(spec: EncoderSpec) -> dict[str, Any]:
    """Return the settings of rotary positions. Raises ValueError for scaled ones, which llama.cpp would not follow."""
    first = spec.layers[0].rotary
    if first is None or first.scaling not in (None, "dynamic"):
        raise ValueError(f"the positions are scaled by the rule {first and first.scaling}, which GGUF does not have")
    return {"rope.freq_base": first.theta}


def _theta(read: ConfigReader, key: str = "rope.freq_base") -> float:
    read.choice("rope.scaling.type", "none", "none")
    return read.number(key, 10_000.0)


def _nomic(read: ConfigReader) -> dict[str, Any]:
    longest = read.size("context_length")
    return {"rotary_emb_base": _theta(read), "n_positions": longest, "max_trained_positions": longest}


def _nomic_mixture(read: ConfigReader) -> dict[str, Any]:
    return _nomic(read) | {
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        "activation_function": "gelu",
        "moe_every_n_layers": read.size("moe_every_n_layers"),
        "num_experts": read.size("expert_count"),
        "moe_top_k": read.size("expert_used_count"),
    }


def _mixture(spec: EncoderSpec) -> dict[str, Any]:
    details = spec.details
    counts = {"expert_count": details.experts, "expert_used_count": details.chosen}
    return _rotary(spec) | counts | {"moe_every_n_layers": details.every}


def _modern(read: ConfigReader) -> dict[str, Any]:
    return {
        "global_rope_theta": _theta(read),
        "local_rope_theta": _theta(read, "rope.freq_base_swa"),
        "local_attention": read.size("attention.sliding_window"),
        "global_attn_every_n_layers": read.size("attention.sliding_window_pattern", 3),
        "classifier_pooling": "mean",
    }


def _windows(spec: EncoderSpec) -> dict[str, Any]:
    windowed = [index for index, layer in enumerate(spec.layers) if layer.window]
    every = next((index for index in range(1, len(spec.layers)) if index not in windowed), len(spec.layers))
    if windowed != [index for index in range(len(spec.layers)) if index % every] or not windowed:
        raise ValueError("layers with and without windows take turns in an order that GGUF does not have")
    local = spec.layers[windowed[0]]
    return _rotary(spec) | {
        "rope.freq_base_swa": local.rotary.theta,
        "attention.sliding_window": 2 * local.window[0],
        "attention.sliding_window_pattern": every,
        "rope.scaling.type": "none",
        "vocab_size": spec.vocab_size,
    }


def _euro(read: ConfigReader) -> dict[str, Any]:
    heads = read.size("attention.head_count_kv", read.size("attention.head_count"))
    found = {"num_key_value_heads": heads, "rope_theta": _theta(read)}
    return found | {"max_position_embeddings": read.size("context_length")}


def _groups(spec: EncoderSpec) -> dict[str, Any]:
    layer = spec.layers[0]
    groups = {"attention.head_count_kv": layer.num_key_value_heads or layer.num_heads, "rope.scaling.type": "none"}
    return _rotary(spec) | groups | {"vocab_size": spec.vocab_size, "rope.dimension_count": layer.head_size}


def _alibi(read: ConfigReader) -> dict[str, Any]:
    fixed = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    return fixed | {"max_position_embeddings": read.size("context_length")}


def _jina_v3(read: ConfigReader) -> dict[str, Any]:
    return {"rotary_emb_base": _theta(read), "max_position_embeddings": read.size("context_length")}


_BERT_HEAD = {"cls": "pooler.dense", "cls.output": "classifier"}
ARCHITECTURES = {
    "bert": Architecture(
        ("bert", "roberta", "xlm-roberta", "camembert", "distilbert"), lambda read: {}, heads=_BERT_HEAD
    ),
    "nomic-bert": Architecture(("nomic_bert",), lambda read: _nomic(read) | {"activation_function": "swiglu"}, _rotary),
    "nomic-bert-moe": Architecture(("nomic_bert",), _nomic_mixture, _mixture),
    "jina-bert-v2": Architecture(
        ("jina_bert", "jina_bert_code"), _alibi, lambda spec: {"attention.max_alibi_bias": 8.0}, _BERT_HEAD
    ),
    "jina-bert-v3": Architecture(("jina_embeddings_v3",), _jina_v3, _rotary),
    "modern-bert": Architecture(
        ("modernbert",),
        _modern,
        _windows,
        {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
        ("attention.layer_norm_epsilon", "norm_eps"),
    ),
    "eurobert": Architecture(("eurobert",), _euro, _groups, eps=("attention.layer_norm_rms_epsilon", "rms_norm_eps")),
}
# Names of a reranker's head in families other than the one that is read: a map, tanh, and a map, in all of them.
WRITTEN_HEADS = {
    model_type: {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
    for model_type in ("roberta", "xlm-roberta", "camembert")
}


def written_as(family: Family, spec: EncoderSpec) -> str:
    """Return the architecture that a model is written as. ValueError for one that GGUF does not have."""
    for name, architecture in ARCHITECTURES.items():
        is_mixture = family.model_type == "nomic_bert" and spec.details is not None
        if family.model_type in architecture.model_types and is_mixture == name.endswith("-moe"):
            return name
    known = sorted({kind for architecture in ARCHITECTURES.values() for kind in architecture.model_types})
    raise ValueError(f"model_type is {family.model_type!r}, expected one that llama.cpp has: {', '.join(known)}")


def parts_of(family: Family, spec: EncoderSpec) -> dict[str, tuple[str, int | None]]:
    """Return the checkpoint's bare name of each module -> its part, and the number of its layer."""
    found: dict[str, tuple[str, int | None]] = {name: (part, None) for part, name in family.encoder_names.items()}
    for index in range(spec.num_layers):
        found |= {name.format(layer=index): (part, index) for part, name in family.layer_names.items()}
    return found


def tensor_name(part: str, layer: int | None, norm_first: bool) -> str:
    """Return GGUF's name of a part, without its ending. CheckpointError for a part that it does not have."""
    if layer is None:
        names: Mapping[str, str] = OUTER
    else:
        names = INNER | dict(zip(("attention_norm", "feed_forward_norm"), NORMS[norm_first], strict=True))
    if part not in names:
        raise CheckpointError(f"the part {part} has no name in GGUF files")
    return names[part] if layer is None else f"blk.{layer}.{names[part]}"


def split_name(name: str, whole: Collection[str] = ()) -> tuple[str, str]:
    """Return the module of a tensor's name and its ending, ".weight" or ".bias", or none for a name of `whole`."""
    module, _, end = name.rpartition(".")
    return (module, f".{end}") if end in ("weight", "bias") and name not in whole else (name, "")
