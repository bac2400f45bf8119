"""Modules of sentence encoders: pooling, the maps after it, static embeddings, and the folder that has them.

The folder is as sentence-transformers writes it.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from bertcore.checkpoint.files import (
    CONFIG_NAME,
    locked,
    made_folder,
    model_type_of,
    read_json_object,
    replacing,
    write_json,
)
from bertcore.kernels.arrays import Array, NativeArray
from bertcore.kernels.pooling import MODES as POOLING
from bertcore.kernels.pooling import POOLING as POOL
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block
from bertcore.passes import Pass
from bertcore.tasks.folder import (
    MODELS,
    MODULES_NAME,
    SETTINGS_NAME,
    TRANSFORMER_NAMES,
    Module,
    SavedSettings,
    check_kinds,
    module_entries,
    opened_folder,
    read_routes,
    read_transformer,
    saved_settings,
)
from bertcore.tasks.sequence_scores import unchanged
from bertcore.tasks.similarity import SIMILARITIES, normalized
from bertcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcore.models.model import Model

# PyTorch's class, by the last part of its name -> the name that `kernels.linear` knows.
ACTIVATIONS = {"Identity": None, "GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "Tanh": "tanh"}

Map = Callable[[Any], Any]


class Dense(Block):
    """A linear map with activation; `residual` adds its input, mapped linearly if the widths differ."""

    def __init__(
        self, sizes: Mapping[str, int], *, activation: str | None, bias: bool, residual: bool, prefix: str = ""
    ):
        self.linear = Linear(f"{prefix}linear", **sizes, activation=activation, bias=bias)
        self.has_residual, self.residual = residual, None
        if residual and sizes["in_features"] != sizes["out_features"]:
            self.residual = Linear(f"{prefix}residual", **sizes, bias=False)

    def __call__(self, run: Pass, rows: Array) -> Array:
        """Map (texts, in_features) to (texts, out_features)."""
        if not self.has_residual:
            return self.linear(run, rows)
        return self.linear(run, rows, rows if self.residual is None else self.residual(run, rows))


def read_maps(modules: tuple[Module, ...], width: int, dtype: str) -> tuple[list[Map], int]:
    """Return the functions of the modules after the pooling, and the width of the last one's result.

    `width` is the first module's input. Raises CheckpointError for an invalid file.
    """
    maps = []
    for module in modules:
        found, width = MAPS[module.kind](module.folder, width, dtype)
        maps.append(found)
    return maps, width


def _dense(folder: Path, width: int, dtype: str) -> tuple[Map, int]:
    dense, _, width = read_dense(folder, width, dtype)
    return partial(_apply, dense), width


def read_dense(
    folder: Path, width: int, dtype: str, vectors: str = "sentence_embedding", prefix: str = ""
) -> tuple[Dense, dict[str, Any], int]:
    """Return a Dense module of `vectors` of this width, its config and the width of its output.

    The names of its parameters get `prefix`. Raises CheckpointError for an invalid file.
    """
    read = SavedSettings(folder / CONFIG_NAME, read_json_object(folder / CONFIG_NAME))
    sizes = {key: read.size(key) for key in ("in_features", "out_features")}
    if sizes["in_features"] != width:
        raise read.wrong("in_features", f"{width}, the width before it")
    if sizes["out_features"] is None:
        raise read.wrong("out_features", "a positive integer")
    for key in ("module_input_name", "module_output_name"):
        if read.get(key) not in (None, vectors):
            raise read.wrong(key, repr(vectors))
    stated = read.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = stated.rpartition(".")[2] if isinstance(stated, str) and stated.startswith("torch.") else None
    if name not in ACTIVATIONS:
        raise read.wrong("activation_function", f"one of PyTorch's {', '.join(ACTIVATIONS)}")
    options = {"bias": read.flag("bias", True), "residual": read.flag("use_residual")}
    dense = Dense(sizes, activation=ACTIVATIONS[name], prefix=prefix, **options)
    fill_block(dense, open_checkpoint(folder), dtype, prefix)
    return dense, read, sizes["out_features"]


def _layer_norm(folder: Path, width: int, dtype: str) -> tuple[Map, int]:
    read = SavedSettings(folder / CONFIG_NAME, read_json_object(folder / CONFIG_NAME))
    if read.size("dimension") != width:
        raise read.wrong("dimension", f"{width}, the width before it")
    norm = LayerNorm("norm", features=width, eps=1e-5)  # PyTorch's default; configs do not state it
    fill_block(norm, open_checkpoint(folder), dtype)
    return partial(_apply, norm), width


def _apply(block: Block, rows: Array) -> Array:
    return block(Pass.begin(rows), rows)


def stored(checkpoint: Checkpoint, name: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return a tensor. Raises CheckpointError if it is missing or has another shape."""
    found = tuple(checkpoint.info[name].shape) if name in checkpoint else None
    if found != tuple(shape):
        what = "is missing" if found is None else f"has shape {found}"
        raise CheckpointError(f"{checkpoint.source}: {name} {what}, expected {tuple(shape)}")
    return np.asarray(checkpoint[name], dtype)


def fill_block(block: Block, checkpoint: Checkpoint, dtype: str, prefix: str = "") -> None:
    """Fill the block's parameters with the values of the file; their names there lack `prefix`."""
    for parameter in block.parameters():
        names = {name: name.removeprefix(prefix) for name in parameter.names}
        values = {name: stored(checkpoint, own, parameter.shape, dtype) for name, own in names.items()}
        parameter.fill(values, dtype)


# Kind of a module -> (folder, input width, dtype) -> its function and output width.
MAPS: dict[str, Callable[[Path, int, str], tuple[Map, int]]] = {
    "Dense": _dense,
    "Dropout": lambda folder, width, dtype: (unchanged, width),  # only active in training
    "LayerNorm": _layer_norm,
    "Normalize": lambda folder, width, dtype: (normalized, width),
}


__all__ = ["POOLING", "pool"]


def pool(hidden: NativeArray, cu_seqlens: np.ndarray, modes: Sequence[str], skipped: int = 0) -> NativeArray:
    """Return the pooled vectors of packed texts, several modes side by side; zeros for a text without tokens.

    Args:
        hidden: (tokens, hidden), any floating dtype; half precision is pooled in float32.
        cu_seqlens: offsets of the texts in host memory, (texts + 1,).
        modes: names from POOLING.
        skipped: number of first tokens of each text that are not pooled.

    Returns:
        (texts, hidden * modes) in the memory of `hidden`, float32 or float64.
    """
    xp = kernels.array_module(hidden)
    if hidden.dtype.itemsize < 4 and isinstance(hidden, np.ndarray):  # Numba does not compute in 16 bits
        hidden = hidden.astype(np.float32)
    dtype = np.promote_types(hidden.dtype, np.float32)
    offsets = xp.asarray(cu_seqlens)
    backend = kernels.resolve_backend(None, on_gpu=xp is not np)
    parts = [POOL.forward(backend, hidden, offsets, mode, skipped, dtype) for mode in modes]  # checked before
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)


class StaticModel:
    """A table of token vectors instead of a model (sentence-transformers' StaticEmbedding, model2vec).

    Args:
        folder: contains the table "embedding.weight", or model2vec's "embeddings", optionally with a row number
            ("mapping") and a weight ("weights") for each token.

    Attributes:
        table: float32 (rows, dim): one per token, unless model2vec's file maps tokens to rows.
        tokens: size of the vocabulary.

    Raises CheckpointError for a file without such a table.
    """

    dtype = "float32"

    def __init__(self, folder: Path):
        opened = open_checkpoint(folder)
        name = next((name for name in ("embedding.weight", "embeddings") if name in opened), None)
        if name is None:
            raise CheckpointError(f"{opened.source} has neither embedding.weight nor embeddings, a table of vectors")
        table = opened[name]
        if table.ndim != 2:
            raise CheckpointError(f"{opened.source}: the table has shape {table.shape}, expected (vocabulary, dim)")
        self.table, self._rows, self._weights = np.asarray(table, np.float32), None, None
        peaks = np.abs(self.table).max(axis=1, initial=0)
        if name == "embeddings" and "mapping" in opened:  # not repeated: many tokens may share a row
            self._rows = self._mapping(opened)
            peaks = peaks[self._rows]
        self.tokens = len(peaks)
        if name == "embeddings" and "weights" in opened:
            self._weights = np.asarray(opened["weights"], np.float32)
            if self._weights.shape != peaks.shape:
                expected = f"({self.tokens},), one for each token"
                raise CheckpointError(f"{opened.source}: weights has shape {self._weights.shape}, expected {expected}")
            with np.errstate(over="ignore", invalid="ignore"):
                peaks = peaks * self._weights
        wrong = np.flatnonzero(~np.isfinite(peaks))
        if wrong.size:
            raise CheckpointError(f"{opened.source}: the vector of token {wrong[0]} holds inf or NaN")
        self.spec = SimpleNamespace(hidden_size=self.table.shape[1], longest_sequence=None)  # any length of text

    def _mapping(self, opened: Checkpoint) -> np.ndarray:
        """Return the row of each token in model2vec's table."""
        rows = np.asarray(opened["mapping"])
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or (rows < 0).any() or (rows >= len(self.table)).any():
            expected = f"the number of one of the {len(self.table)} embeddings for each token"
            raise CheckpointError(f"{opened.source}: mapping has other values, expected {expected}")
        return rows

    def __repr__(self) -> str:
        return f"<StaticModel: {self.tokens:,} tokens, {self.table.shape[1]} dimensions>"

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the table, the rows and the weights under model2vec's names."""
        found = {"embeddings": self.table, "mapping": self._rows, "weights": self._weights}
        return {name: array for name, array in found.items() if array is not None}

    def encode_packed(self, input_ids: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Return token vectors (tokens, dim) in the current backend's memory, and offsets, int32 (sequences + 1,).

        The counterpart of `Model.encode_packed`.
        """
        cu_seqlens = np.cumsum([0, *map(len, input_ids)]).astype(np.int32)
        ids = np.concatenate([np.zeros(0, np.int64), *input_ids])
        if ids.size and ids.max() >= self.tokens:
            raise ValueError(f"input_ids has {ids.max()}, expected 0 to {self.tokens - 1}: the tokens of the table")
        vectors = self.table[ids if self._rows is None else self._rows[ids]]
        if self._weights is not None:
            vectors *= self._weights[ids, None]
        with kernels.use_backend(kernels.resolve_backend(None, on_gpu=False)):
            return kernels.to_backend(vectors), cu_seqlens


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of unknown words in a tokenizer's vocabulary; None if it knows all."""
    backend = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    return backend.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")


# Older files have a flag for each mode, in the order in which the vectors of several modes are joined.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

WIDTH_KEYS = ("embedding_dimension", "word_embedding_dimension")  # since sentence-transformers 6, and before
JINA_V5 = "jina_embeddings_v5"


@dataclass(frozen=True)
class Settings:
    """Settings in the folder of a sentence encoder."""

    model_folder: Path  # folder of config.json, the weights and the tokenizer
    folders: tuple[Path, ...] = ()  # the folder that was read and those of its modules
    is_static: bool = False  # whether the model is a table with one vector per token, whose mean is pooled
    # "drop" to leave out unknown words of static embeddings, as Model2Vec does, for its files; "mean" to pool their
    # vector like the others
    unknown: str = "mean"
    pooling_file: Path | None = None  # the pooling's config; None for a plain model
    # key and value of the stated width of the pooled hidden states; None if it is not stated
    width: tuple[str, int] | None = None
    pooling: tuple[str, ...] = ("mean",)  # modes of POOLING; the vectors of several are joined
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    maps: tuple[Module, ...] = ()  # the modules after the pooling except a final Normalize
    normalize: bool = False  # whether a final Normalize scales embeddings to length 1
    # texts are cut to this many tokens; None leaves it to the tokenizer and the model
    max_seq_length: int | None = None
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenized
    similarity: str = "cosine"  # name of the similarity that the model was trained for
    truncate_dim: int | None = None  # number of first dimensions that are kept; None for all


def read_settings(folder: str | os.PathLike[str], modules: list[Module] | None = None) -> Settings:
    """Read the settings of a sentence encoder's folder, or of one of its routes, which has these `modules`.

    A folder without modules.json is a plain model: mean pooling and no normalisation, as in sentence-transformers. By
    default `modules` are those of a Router's default route.

    Raises CheckpointError for an invalid file or an unsupported module.
    """
    folder = opened_folder(folder, "sentence encoder")
    with locked(folder, shared=True):
        read = saved_settings(folder)
        if modules is None and (routes := read_routes(folder)):
            modules = routes.modules[routes.first]
    own = modules is not None and [module.type for module in modules] == ["custom_st.Transformer"]
    is_static = modules is not None and not own and _check_order(folder, modules)
    options: dict[str, Any] = {"similarity": read.choice("similarity_fn_name", *SIMILARITIES)}
    options["truncate_dim"] = read.size("truncate_dim")
    if modules is None:
        table = _read_model2vec(folder)
        of_model = {"is_static": True, **table} if table else read_transformer(folder, "feature-extraction")
        return Settings(folder, (folder,), **of_model, **options)
    if own and SavedSettings(folder / CONFIG_NAME).get("model_type") == JINA_V5:
        how = {"pooling": ("lasttoken",), "normalize": True}  # like the code named there, which is never run
        return Settings(folder, (folder,), **read_transformer(folder, "feature-extraction"), **options, **how)
    maps = modules[1 if is_static else 2 :]
    normalize = bool(maps) and maps[-1].kind == "Normalize"
    if is_static:
        options |= _read_model2vec(modules[0].folder)
    else:
        options |= _read_pooling(modules[1].folder / "config.json")
        options |= read_transformer(modules[0].folder, "feature-extraction")
    return Settings(
        model_folder=modules[0].folder,
        folders=tuple(dict.fromkeys([folder, *(module.folder for module in modules)])),
        is_static=is_static,
        maps=tuple(maps[:-1] if normalize else maps),
        **(options | {"normalize": normalize}),
    )


def _read_model2vec(folder: Path) -> dict[str, Any]:
    """Return the settings in Model2Vec's config beside its table; none for another kind of model."""
    read = SavedSettings(folder / CONFIG_NAME)
    if model_type_of(read) != "model2vec":
        return {}
    longest = read.size("max_length") if "max_length" in read else 512
    return {"unknown": "drop", "max_seq_length": longest, "normalize": read.flag("normalize")}


def _check_order(folder: Path, modules: list[Module]) -> bool:
    """Return whether the first module is a StaticEmbedding. Raises CheckpointError for an unsupported order."""
    check_kinds(folder, modules, ("Transformer", "Pooling", "StaticEmbedding", *MAPS))
    kinds = [module.kind for module in modules]
    for start in (["StaticEmbedding"], ["Transformer", "Pooling"]):
        if kinds[: len(start)] == start and set(kinds[len(start) :]) <= set(MAPS):
            return start == ["StaticEmbedding"]
    raise CheckpointError(
        f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected Transformer, Pooling (or "
        f"StaticEmbedding alone) and, if wanted, {', '.join(MAPS)}"
    )


def _read_pooling(file: Path) -> dict[str, Any]:
    read = SavedSettings(file, read_json_object(file))
    modes = read.texts("pooling_mode")
    if read.get("pooling_mode") is None:
        modes = tuple(mode for key, mode in POOLING_FLAGS.items() if read.flag(key)) or ("mean",)
    if not modes or not set(modes) <= set(POOLING):
        raise read.wrong("pooling_mode", f"one or several of {', '.join(POOLING)}")
    width = next(((key, read[key]) for key in WIDTH_KEYS if read.size(key)), None)
    return {"pooling_file": file, "pooling": modes, "width": width, "include_prompt": read.flag("include_prompt", True)}


def save_sentence_encoder(
    folder: str | os.PathLike[str],
    model: "Model",
    tokenizer: Tokenizer,
    *,
    pooling: str | Sequence[str] = "mean",
    normalize: bool = False,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
) -> None:
    """Write a model, its tokenizer, and the settings of a sentence encoder (modules.json, 1_Pooling/config.json, ...).

    Args:
        folder: created if it is missing; other files in it stay.
        model: an AutoModel, as trained by an objective of sentence embeddings.
        tokenizer: its tokenizer.
        pooling: one or several of "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean" and "lasttoken".
        normalize: whether embeddings are scaled to length 1.
        max_seq_length: length that texts are cut to, in tokens; None leaves it to tokenizer and model.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        prompts, default_prompt_name: texts to put before an input, by name, and the name of the default one.

    Raises:
        ValueError: the pooling or the default prompt is unknown.
        OSError: a file cannot be written; the error names it.
    """
    modes, prompts = [pooling] if isinstance(pooling, str) else list(pooling), dict(prompts or {})
    unknown = [mode for mode in modes if mode not in POOLING]
    if unknown or not modes:
        raise ValueError(f"pooling is {pooling!r}, expected one or several of {', '.join(POOLING)}")
    if default_prompt_name is not None and default_prompt_name not in prompts:
        raise ValueError(f"default_prompt_name is {default_prompt_name!r}, prompts has {', '.join(prompts) or 'none'}")
    kinds = {"": f"{MODELS}.Transformer", "1_Pooling": f"{MODELS}.Pooling"}
    if normalize:
        kinds["2_Normalize"] = f"{MODELS}.Normalize"
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    contents = {
        "1_Pooling/config.json": {"word_embedding_dimension": model.spec.hidden_size, **flags},
        MODULES_NAME: module_entries(kinds),
        TRANSFORMER_NAMES[0]: {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case},
        SETTINGS_NAME: {"prompts": prompts, "default_prompt_name": default_prompt_name},
    }
    folder = made_folder(folder)
    for path in filter(None, kinds):
        (folder / path).mkdir(exist_ok=True)
    with replacing(folder, CONFIG_NAME) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        for name, value in contents.items():
            write_json(new / name, value)
