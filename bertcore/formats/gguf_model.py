"""Models in GGUF, read: a file is unpacked once, into a checkpoint's folder in the cache.

Everything that opens a checkpoint then opens the file: models, tokenizers, encoders, commands, servers. Tensors are
named by the parts of a layer, which every family has (`Family.layer_names`), both ways: no family is listed twice.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import checkpoint
from bertcore.checkpoint import SCALE, CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, listed, made_folder, read_json_object, replacing
from bertcore.formats.gguf_file import GGUFFile
from bertcore.formats.gguf_tokenizer import tokenizer_files
from bertcore.kernels.arrays import Array
from bertcore.kernels.cache_folder import writable_cache_folder
from bertcore.models.auto import AutoModel, AutoModelForSequenceClassification
from bertcore.models.model import Model
from bertcore.models.registry import Family, family_of
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


_ALIBI = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
_BERT_HEAD = {"cls": "pooler.dense", "cls.output": "classifier"}
ARCHITECTURES = {
    "bert": Architecture(
        ("bert", "roberta", "xlm-roberta", "camembert", "distilbert"), lambda read: {}, heads=_BERT_HEAD
    ),
    "nomic-bert": Architecture(("nomic_bert",), lambda read: _nomic(read) | {"activation_function": "swiglu"}, _rotary),
    "nomic-bert-moe": Architecture(("nomic_bert",), _nomic_mixture, _mixture),
    "jina-bert-v2": Architecture(
        ("jina_bert", "jina_bert_code"),
        lambda read: _ALIBI | {"max_position_embeddings": read.size("context_length")},
        lambda spec: {"attention.max_alibi_bias": 8.0},
        _BERT_HEAD,
    ),
    "jina-bert-v3": Architecture(
        ("jina_embeddings_v3",),
        lambda read: {"rotary_emb_base": _theta(read), "max_position_embeddings": read.size("context_length")},
        _rotary,
    ),
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


LAYOUT = 1  # of unpacked folders: a file that an earlier version has unpacked is unpacked again
SOURCE_NAME = "gguf_source.json"
IGNORED = ("rope_freqs.weight",)  # follows from the settings


def unpacked(file: Path) -> Path:
    """Return the folder that holds the file's model, tokenizer and settings; unpack it if it changed.

    Raises CheckpointError for a broken file and for a model that is not supported; OSError without a writable cache.
    """
    stat = file.stat()
    source = {"file": str(file.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "layout": LAYOUT}
    key = hashlib.sha256(source["file"].encode(errors="surrogateescape")).hexdigest()[:32]
    folder = made_folder(writable_cache_folder() / "gguf" / key)
    known = folder / SOURCE_NAME
    if known.is_file() and read_json_object(known) == source and (folder / CONFIG_NAME).is_file():
        return folder
    config, tensors, texts = read_model(file)
    with replacing(folder, CONFIG_NAME) as new:
        checkpoint.save_checkpoint(new, config, tensors)
        for name, value in {**texts, SOURCE_NAME: source}.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return folder


def read_model(file: Path) -> tuple[dict[str, Any], dict[str, Array], dict[str, Any]]:
    """Return the config, the tensors and the other files (name -> JSON) of a GGUF file's checkpoint."""
    opened = GGUFFile(file)
    try:
        name = ConfigReader(opened.metadata).choice("general.architecture", None, *ARCHITECTURES)
        architecture = ARCHITECTURES[name]
        within = {key.removeprefix(f"{name}."): value for key, value in opened.metadata.items()}
        read = ConfigReader(within, within=f"{name}.")
        pooling = read.choice("pooling_type", 0, 0, *POOLINGS, RANK)
        config = _config(opened, architecture, read, pooling)
        tokenizer = tokenizer_files(opened.metadata, config)
        config["pad_token_id"] = tokenizer.pop("pad_token_id")
        kind: type[Model] = AutoModelForSequenceClassification if pooling == RANK else AutoModel
        options = {} if pooling == RANK else {"add_pooling_layer": False}
        model = kind.class_for_config(config)(config, **options)
        tensors, dtype = _Tensors(opened, model, architecture).read()
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:  # of a config's reader, or of a list where a number is expected
        raise CheckpointError(f"{file}: {str(error).removeprefix('config: ')}") from error
    if dtype is not None:
        config = checkpoint.with_dtype(config, dtype)
    return config, tensors, tokenizer | _settings(config, pooling)


def _config(opened: GGUFFile, architecture: Architecture, read: ConfigReader, pooling: int) -> dict[str, Any]:
    """Return the config of the family that reads the architecture."""
    model_type = architecture.model_types[0]
    if model_type == "jina_bert" and "blk.0.attn_q_norm.weight" in opened.info:
        model_type = "jina_bert_code"
    of_file, of_config = architecture.eps
    config = {
        "model_type": model_type,
        "hidden_size": read.size("embedding_length"),
        "num_hidden_layers": read.size("block_count"),
        "num_attention_heads": read.size("attention.head_count"),
        "intermediate_size": read.size("feed_forward_length"),
        "vocab_size": _rows(opened, "token_embd"),
        "type_vocab_size": _rows(opened, "token_types"),
        of_config: read.number(of_file),
        **architecture.config(read),
    }
    if read.flag("attention.causal", False):
        raise CheckpointError(f"{opened.file} has causal attention, expected an encoder")
    if "position_embd.weight" in opened.info:
        config["max_position_embeddings"] = _rows(opened, "position_embd")
    elif model_type == "bert":
        raise CheckpointError(f"{opened.file} has no tensor position_embd.weight")
    family = family_of(config)
    config["architectures"] = [f"{family.architecture}{'ForSequenceClassification' if pooling == RANK else 'Model'}"]
    if pooling == RANK:
        if not {f"{name}.weight" for name in architecture.heads} <= set(opened.info) or not architecture.heads:
            needed = ", ".join(f"{name}.weight" for name in architecture.heads) or "none for this architecture"
            raise CheckpointError(f"{opened.file} is a reranker without the tensors of its head: {needed}")
        labels = opened.metadata.get(f"{opened.metadata['general.architecture']}.classifier.output_labels")
        count = _rows(opened, "cls.output")
        names = labels if isinstance(labels, list) and len(labels) == count else [f"LABEL_{i}" for i in range(count)]
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
    return config


def _rows(opened: GGUFFile, name: str) -> int:
    info = opened.info.get(f"{name}.weight")
    return 0 if info is None else info.shape[0]


def _settings(config: Mapping[str, Any], pooling: int) -> dict[str, Any]:
    """Return the files of a sentence encoder, by name; vectors are scaled to length 1, as runtimes of GGUF do."""
    if pooling not in POOLINGS:
        return {}
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    pooled = {"word_embedding_dimension": config["hidden_size"], "pooling_mode": POOLINGS[pooling]}
    return {"modules.json": modules, "1_Pooling/config.json": pooled}


class _Tensors:
    """Find a model's tensors in a file."""

    def __init__(self, opened: GGUFFile, model: Model, architecture: Architecture):
        self.opened, self.model, self.spec = opened, model, model.spec
        self.rules, self.missing = model.family.name_rules, []
        self.parts = parts_of(model.family, model.spec)
        self.heads = {name: own for own, name in architecture.heads.items()}
        self.used: set[str] = set()

    def read(self) -> tuple[dict[str, Array], str | None]:
        """Return the checkpoint's tensors, and int8_weight_only if they are the blocks of all linear maps."""
        expected = self.model.expected_tensors()
        sources = {name: self._sources(name, shape) for name, shape in expected.items()}
        if self.missing:
            raise CheckpointError(f"{self.opened.file} lacks the tensors {listed(self.missing)}")
        left = sorted(set(self.opened.info) - self.used - set(IGNORED))
        if left:
            raise CheckpointError(f"{self.opened.file} has tensors that its architecture does not: {listed(left)}")
        maps = {name for each in self.model.parameters() if each.uses == {"weight"} for name in each.names}
        infos = {name: [self.opened.info[part] for part, _ in sources[name]] for name in maps}
        keeps = all(
            parts and all(info.kind == "Q8_0" and info.shape[1:] == expected[name][1:] for info in parts)
            for name, parts in infos.items()
        )
        found = {}
        for name, shape in expected.items():
            if keeps and name in maps:
                found |= self._int8(name, sources[name])
            else:
                found[name] = self._plain(name, sources[name], shape)
        return found, "int8_weight_only" if keeps else None

    def _sources(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, slice]]:
        """Return the file's tensors that a tensor is made of, below each other, and which of their rows."""
        module, end = split_name(self.rules.without_prefix(name), self.parts)
        if module in self.heads:
            return self._found([self.heads[module] + end])
        part, layer = self.parts[module]
        spec = self.spec.layers[layer or 0]
        end = end or (".bias" if part == "experts_bias" else ".weight")
        whole = tensor_name(part, layer, spec.norm_first) + end
        if part == "experts_bias" and whole not in self.opened.info:
            return []  # zero: llama.cpp has none
        stem = f"blk.{layer}."
        if part == "qkv" and whole not in self.opened.info:
            return self._found([f"{stem}attn_{letter}{end}" for letter in "qkv"])
        joined = f"{stem}attn_qkv{end}"
        if part in ("query", "key", "value") and whole not in self.opened.info and joined in self.opened.info:
            sizes = [spec.attention_size, spec.key_value_size, spec.key_value_size]
            place = ("query", "key", "value").index(part)
            first = sum(sizes[:place])
            return self._found([joined], slice(first, first + sizes[place]))
        gate = f"{stem}ffn_gate{end}"
        has_gate = "gate" in self.model.family.layer_names
        if part == "expand" and spec.gate is not None and gate in self.opened.info and not has_gate:
            return self._found([gate, whole] if spec.gate == "first" else [whole, gate])
        return self._found([whole])

    def _found(self, names: list[str], rows: slice = slice(None)) -> list[tuple[str, slice]]:
        self.missing += [name for name in names if name not in self.opened.info]
        self.used.update(names)
        return [(name, rows) for name in names]

    def _int8(self, name: str, sources: list[tuple[str, slice]]) -> dict[str, Array]:
        blocks = np.concatenate([self.opened.blocks(source)[rows] for source, rows in sources])
        return {name: blocks["q"].reshape(len(blocks), -1), name + SCALE: np.ascontiguousarray(blocks["d"])}

    def _plain(self, name: str, sources: list[tuple[str, slice]], shape: tuple[int, ...]) -> Array:
        if not sources:
            return np.zeros(shape, np.float32)
        arrays = [self.opened.read(source)[rows] for source, rows in sources]
        array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        if array.ndim == 3:  # the experts, each with its rows
            array = array.transpose(0, 2, 1) if "ffn_down_exps" in sources[0][0] else array
            array = array.reshape(-1, array.shape[-1])
        if array.shape != tuple(shape):
            given = ", ".join(source for source, _ in sources)
            raise CheckpointError(
                f"{self.opened.file}: {given} has the shape {list(array.shape)}, expected {list(shape)} for {name}"
            )
        return np.ascontiguousarray(array)
