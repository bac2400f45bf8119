"""The parts of sparse encoders other than the model: settings, sparse rows, token weights, the autoencoder of CSR."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.arguments import required, warn_caller
from bertcore.checkpoint import CheckpointError, open_checkpoint, save_checkpoint
from bertcore.checkpoint.files import CONFIG_NAME, read_json_object, write_json
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass
from bertcore.tasks.folder import (
    BGE_LINEARS,
    MODULES_NAME,
    ROUTER_NAME,
    SETTINGS_NAME,
    Module,
    SavedSettings,
    check_kinds,
    inside,
    module_entries,
    opened_folder,
    read_routes,
    read_transformer,
    saved_settings,
)
from bertcore.tasks.long_texts import MergedWindows
from bertcore.tasks.sentence_encoder.modules import MAPS, Settings, fill_block, read_settings, stored
from bertcore.tasks.similarity import SIMILARITIES
from bertcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from scipy.sparse import coo_array, csr_array

    from bertcore.kernels.arrays import Array, NativeArray

STRATEGIES, ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")
TRANSFORMERS = ("Transformer", "MLMTransformer")
BASE, OWN = "sentence_transformers.base.modules", "sentence_transformers.sparse_encoder.modules"
TYPES = {
    "Router": f"{BASE}.router.Router",
    "Transformer": f"{BASE}.transformer.Transformer",
    "Pooling": f"{OWN}.splade_pooling.SpladePooling",
    "Static": f"{OWN}.sparse_static_embedding.SparseStaticEmbedding",
    "AutoEncoder": f"{OWN}.sparse_auto_encoder.SparseAutoEncoder",
}
QUERY, DOCUMENT, POOLING = "query_0_SparseStaticEmbedding", "document_0_Transformer", "document_1_SpladePooling"


@dataclass(frozen=True)
class SparseSettings:
    """Settings in the folder of a sparse encoder, or of one of its routes."""

    model_folder: Path  # folder of config.json, the weights and the tokenizer
    folders: tuple[Path, ...] = ()  # the folder that was read and those of its modules
    # whether texts are represented by a fixed weight per token, without a model (inference-free SPLADE)
    is_static: bool = False
    # the settings of the sentence encoder under a SparseAutoEncoder (CSR); None without one
    dense: Settings | None = None
    head_folder: Path | None = None  # the folder of the SparseAutoEncoder; None for a new one
    linear: Path | None = None  # BGE-M3's map from a token's state to its weight; None for other models
    strategy: str = "max"  # "max" or "sum" over the tokens of a text
    activation: str = "relu"  # "relu", log(1 + relu(logit)), or "log1p_relu", the logarithm twice
    max_active_dims: int | None = None  # most weights of a text; None for no limit
    similarity: str = "dot"  # name of the similarity
    # as in a sentence encoder's settings
    max_seq_length: int | None = None
    do_lower_case: bool = False

    @property
    def pooling_config(self) -> dict[str, str]:
        """The config of a SpladePooling."""
        return {"pooling_strategy": self.strategy, "activation_function": self.activation}


def read_sparse_settings(folder: Path, modules: list[Module] | None = None) -> SparseSettings:
    """Read the settings of a sparse encoder's folder, or of one of its routes, which has these `modules`.

    A plain masked language model uses SPLADE's "max", a sentence encoder gets a new SparseAutoEncoder.

    Raises CheckpointError for an invalid file or an unsupported module.
    """
    folder = opened_folder(folder, "sparse encoder")
    if modules is None and (routes := read_routes(folder)):
        modules = routes.modules[routes.first]
    read = saved_settings(folder)
    more: dict[str, Any] = {"max_active_dims": read.size("max_active_dims")}
    more["similarity"] = read.choice("similarity_fn_name", *sorted(SIMILARITIES, key=lambda name: name != "dot"))
    if (linear := folder / BGE_LINEARS[1]).is_file():
        where = modules[0].folder if modules else folder
        return SparseSettings(where, linear=linear, **more, **read_transformer(where, "feature-extraction"))
    if modules is None:
        return SparseSettings(folder, (folder,), **more, **read_transformer(folder, "fill-mask"))
    more["folders"] = tuple(dict.fromkeys([folder, *(module.folder for module in modules)]))
    supported = (*TRANSFORMERS, "SpladePooling", "SparseStaticEmbedding", "Pooling", *MAPS, "SparseAutoEncoder")
    check_kinds(folder, modules, supported)
    kinds, where = [module.kind for module in modules], modules[0].folder if modules else folder
    if kinds == ["SparseStaticEmbedding"]:
        return SparseSettings(where, is_static=True, **more)
    if kinds[:2] == ["Transformer", "Pooling"]:
        has_head = kinds[-1] == "SparseAutoEncoder"
        dense = read_settings(folder, modules[:-1] if has_head else modules)
        texts = {"max_seq_length": dense.max_seq_length, "do_lower_case": dense.do_lower_case}
        return SparseSettings(where, dense=dense, head_folder=modules[-1].folder if has_head else None, **more, **texts)
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        raise CheckpointError(
            f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected MLMTransformer (or "
            "Transformer for fill-mask) and SpladePooling, SparseStaticEmbedding alone, or Transformer, Pooling and, "
            "last, SparseAutoEncoder"
        )
    file = modules[1].folder / CONFIG_NAME
    read = SavedSettings(file, read_json_object(file))
    more |= {"strategy": read.choice("pooling_strategy", *STRATEGIES)}
    more |= {"activation": read.choice("activation_function", *ACTIVATIONS)}
    return SparseSettings(where, **more, **read_transformer(where, "fill-mask"))


def write_router(target: Path, document: SparseSettings, max_seq_length: int, saved: Mapping[str, Any]) -> None:
    """Write the settings of the Router that sentence-transformers uses instead of an idf.json.

    `document` are the settings of the route of documents, `saved` those of the encoder.
    """
    kinds = {QUERY: "Static", DOCUMENT: "Transformer", POOLING: "Pooling"}
    router = {
        "types": {name: TYPES[kind] for name, kind in kinds.items()},
        "structure": {"query": [QUERY], "document": [DOCUMENT, POOLING]},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    transformer = {"transformer_task": "fill-mask", "max_seq_length": max_seq_length}
    write_json(target / DOCUMENT / "sentence_bert_config.json", transformer)
    write_json(target / POOLING / CONFIG_NAME, document.pooling_config)
    write_json(target / ROUTER_NAME, router)
    write_json(target / MODULES_NAME, module_entries({"": TYPES["Router"]}))
    write_json(target / SETTINGS_NAME, saved)


IDF_NAME = "idf.json"
MOST_WEIGHT = float(np.finfo(np.float32).max)


class SparseRow(NamedTuple):
    """The weights of one text: ascending vocabulary ids, int32, and their weights, float32."""

    indices: np.ndarray
    values: np.ndarray


def sparse_row(weights: np.ndarray, most: int | None) -> SparseRow:
    """Return the non-zero weights, at most the `most` greatest by magnitude; ties keep the first."""
    indices = np.flatnonzero(weights)
    if most is not None and len(indices) > most:
        indices = np.sort(indices[np.argsort(-np.abs(weights[indices]), kind="stable")[:most]])
    return SparseRow(indices.astype(np.int32), weights[indices].astype(np.float32))


class MergedWords(MergedWindows):
    """Merge the rows of a text's windows into one with at most `most` weights."""

    def __init__(self, merge: str, words: int, most: int | None):
        super().__init__(merge)
        self._words, self._most = words, most

    def add(self, row: SparseRow, tokens: int) -> None:
        weights = np.zeros(self._words, np.float32)
        weights[row.indices] = row.values
        super().add(weights, tokens)

    def take(self) -> SparseRow:
        return sparse_row(super().take(), self._most)


def as_table(embeddings: Any, width: int | None = None) -> csr_array:
    """Return sparse or dense embeddings, SciPy's, PyTorch's or a list of SparseRows, as a table of rows.

    Raises ValueError for rows of another width, if that is given.
    """
    sparse = required("scipy.sparse")
    if isinstance(embeddings, SparseRow):
        embeddings = [embeddings]
    if isinstance(embeddings, list) and all(isinstance(row, SparseRow) for row in embeddings):
        offsets = np.cumsum([0, *(len(row.indices) for row in embeddings)])
        indices = np.concatenate([np.zeros(0, np.int32), *(row.indices for row in embeddings)])
        values = np.concatenate([np.zeros(0, np.float32), *(row.values for row in embeddings)])
        if width is not None and indices.size and not 0 <= indices.min() <= indices.max() < width:
            raise ValueError(f"embeddings has the index {indices.max()}, expected 0 to {width - 1}")
        shape = None if width is None else (len(embeddings), width)
        return sparse.csr_array((values, indices, offsets), shape=shape)
    if hasattr(embeddings, "is_sparse"):
        embeddings = embeddings.to_dense().numpy()
    if not hasattr(embeddings, "ndim"):
        raise TypeError(f"embeddings is {type(embeddings).__name__}, expected a table of SciPy, NumPy or PyTorch")
    table = sparse.csr_array(embeddings)
    table = table.reshape(1, -1).tocsr() if table.ndim == 1 else table
    if width is not None and table.shape[1] != width:
        raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}, expected rows of {width}")
    return table


@functools.lru_cache(maxsize=8)
def _empty_vector(width: int) -> coo_array:
    return required("scipy.sparse").coo_array((width,), dtype=np.float32)


def as_vector(row: SparseRow, width: int) -> coo_array:
    """Return a row as a sparse vector (width,) without SciPy's checks, in a fifth of the time."""
    found = copy.copy(_empty_vector(width))
    found.data, found.coords = row.values, (row.indices,)
    return found


def find_idf(folder: Path, root: Path) -> Path | None:
    """Return the idf.json of a SparseStaticEmbedding in `folder` of the model `root`; None for a table of weights.

    Its config may name the file by "path". Raises CheckpointError for a name out of the folder, or of no file.
    """
    read = SavedSettings(folder / CONFIG_NAME)
    path = read.get("path")
    if isinstance(path, str) and path.endswith(".json"):
        found = [each for each in (inside(read.file, path), root / path) if each.is_file()]
        if not found:
            raise read.wrong("path", "the name of a file here")
        return found[0]
    return folder / IDF_NAME if (folder / IDF_NAME).is_file() else None


class TokenWeights(Block):
    """A weight for each token of the vocabulary: a text has the weights of its distinct tokens.

    Args:
        folder: the module's folder, with model.safetensors or, as from OpenSearch, an idf.json of tokens and weights.
        root: the folder of the whole model.
        vocabulary: ids of tokens.
        dtype: "float32" or "float64".

    Attributes:
        weight: the parameter, (tokens,).

    Raises CheckpointError for an invalid file.
    """

    def __init__(self, folder: Path, root: Path, vocabulary: Mapping[str, int], dtype: str = "float32"):
        idf, count = find_idf(folder, root), len(vocabulary)
        if idf is None:
            opened = open_checkpoint(folder)
            source, table = opened.source, stored(opened, "weight", (count,), "float32")
        else:
            source, table = idf, np.zeros(count, np.float32)
            for token, weight in read_json_object(idf).items():
                if vocabulary.get(token, count) >= count:
                    raise CheckpointError(f"{idf} has {token!r:.80}, expected tokens of the tokenizer")
                if isinstance(weight, bool) or not isinstance(weight, int | float) or abs(weight) > MOST_WEIGHT:
                    raise CheckpointError(f"{idf}: the weight of {token!r:.80} is {weight!r:.80}, expected a number")
                table[vocabulary[token]] = weight
        if not np.isfinite(table).all():
            raise CheckpointError(f"{source}: weight holds inf or NaN, expected finite numbers")
        self.weight = Parameter("weight", shape=(count,))
        self.weight.fill({"weight": table.astype(dtype)}, dtype)
        self.weight.is_frozen = SavedSettings(folder / CONFIG_NAME).flag("frozen")

    @property
    def table(self) -> np.ndarray:
        """The weights in host memory, (tokens,)."""
        return self.weight.array()

    def row(self, ids: np.ndarray, most: int | None) -> SparseRow:
        """Return the weights of a text's token ids, at most `most`."""
        found = np.array(sorted(set(ids.tolist())), np.int32)  # for a query, ten times faster than np.unique
        weights = self.table[found]
        if most is None and weights.all():
            return SparseRow(found, weights.astype(np.float32, copy=False))
        kept = sparse_row(weights, most)
        return SparseRow(found[kept.indices], kept.values)

    def save(self, folder: Path) -> None:
        """Write the module as sentence-transformers loads it."""
        save_checkpoint(folder, {"frozen": self.weight.is_frozen}, {"weight": self.table})


class LearnedWeights:
    """The weight of a token from its state: relu(a linear map), the maximum over a text (BGE-M3's lexical weights).

    `file` is sparse_linear.pt, for states of `width`; the tokenizer's special tokens have no weight. Raises
    CheckpointError for a file with other arrays.
    """

    def __init__(self, file: Path, width: int, tokenizer: Tokenizer):
        opened, shapes = open_checkpoint(file), {"weight": (1, width), "bias": (1,)}
        self.weight, self.bias = (stored(opened, name, shape, "float32")[0] for name, shape in shapes.items())
        special = (getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "eos", "pad", "unk"))
        self.special = [token for token in special if token is not None]

    def rows(self, batch: list[np.ndarray], hidden: Array, offsets: np.ndarray, words: int) -> Iterator[np.ndarray]:
        """Yield the weights of the vocabulary, (words,), for each packed text."""
        scores = np.maximum(kernels.to_host(hidden).astype(np.float32) @ self.weight + self.bias, 0)
        for ids, first in zip(batch, offsets.tolist(), strict=False):
            weights = np.zeros(words, np.float32)
            np.maximum.at(weights, ids, scores[first : first + len(ids)])
            weights[self.special] = 0
            yield weights


class AutoEncoder(Block):
    """A sparse autoencoder: the k greatest of relu(W (x - b) + c) (Wen et al. 2025, arXiv:2503.01776).

    Args:
        folder: the module's folder; None for a new one with random weights, with a warning.
        width: length of the input vectors.
        dtype: "float32" or "float64".

    Attributes:
        hidden_dim: length of the code.
        k, k_aux: number of code entries that are kept, and of unused entries that a loss keeps.
        normalize: whether vectors are scaled to mean 0 and deviation 1.
        dead_threshold: passes in training after which an entry counts as unused.
        unused: passes since an entry was used, int64 (hidden_dim,).

    Raises CheckpointError for an invalid file.
    """

    eps = 1e-5  # added to deviations

    def __init__(self, folder: Path | None, width: int, dtype: str = "float32"):
        if folder is None:
            sizes = {"input_dim": width, "hidden_dim": 4 * width, "k": max(width // 4, 1), "k_aux": width // 2}
            read = SavedSettings(Path(CONFIG_NAME), sizes)
        else:
            own = {"hidden_dim": 512, "k": 8, "k_aux": 512}
            read = SavedSettings(folder / CONFIG_NAME, own | read_json_object(folder / CONFIG_NAME))
        if read.size("input_dim") != width:
            raise read.wrong("input_dim", f"{width}, the width before it")
        self.hidden_dim, self.k = read.size("hidden_dim", 512), read.size("k", 8)
        self.k_aux = read.size("k_aux") if read.get("k_aux") else 0
        if self.k > self.hidden_dim:
            raise read.wrong("k", f"at most {self.hidden_dim}, the hidden_dim")
        self.normalize, self.dead_threshold = read.flag("normalize"), read.size("dead_threshold", 30)
        opened = None if folder is None else open_checkpoint(folder)
        name = "decoder.linear" if opened is not None and "decoder.linear.weight" in opened else "encoder"
        self.pre_bias = Parameter("pre_bias", shape=(width,), initial="zeros")
        self.encoder = Linear(name, in_features=width, out_features=self.hidden_dim, bias=False)
        self.encoder.bias = Parameter("latent_bias", shape=(self.hidden_dim,), initial="zeros")
        if opened is None:
            warn_caller("the autoencoder is newly initialised: train it before use", NewlyInitialisedWarning)
            for parameter in self.parameters():
                parameter.initialise(np.random.default_rng(0), (3 * width) ** -0.5, dtype)
        else:
            fill_block(self, opened, dtype)
            if not all(np.isfinite(parameter.array()).all() for parameter in self.parameters()):
                raise CheckpointError(f"{opened.source} holds inf or NaN, expected finite numbers")
        self.unused = np.zeros(self.hidden_dim, np.int64)  # the file has shown that this size is right
        stats = "stats_last_nonzero"
        if opened is not None and stats in opened and opened.info[stats].shape == self.unused.shape:
            self.unused[:] = opened[stats]

    def rows(self, vectors: np.ndarray, most: int | None) -> list[SparseRow]:
        """Return the codes of vectors, (texts, width), with at most `most` entries each, by default `k`."""
        if self.normalize:
            deviations = vectors.std(axis=1, keepdims=True, ddof=1)
            vectors = (vectors - vectors.mean(axis=1, keepdims=True)) / (deviations + self.eps)
        centred = (vectors - self.pre_bias.array()).astype(self.pre_bias.dtype)
        codes = np.asarray(self.encoder(Pass.begin(centred), centred))
        return [sparse_row(np.maximum(code, 0), most or self.k) for code in codes]

    def save(self, folder: Path) -> None:
        """Write the module as sentence-transformers loads it."""
        names = "hidden_dim", "k", "k_aux", "normalize", "dead_threshold"
        config = {"input_dim": self.pre_bias.shape[0]} | {name: getattr(self, name) for name in names}
        tensors = {name: array for parameter in self.parameters() for name, array in parameter.tensors()}
        save_checkpoint(folder, config, tensors | {"stats_last_nonzero": self.unused})


GROUP_TOKENS = 128  # tokens whose logits are in memory at once: 16 MB with BERT's vocabulary


def pooled_words(
    head: Callable[[Any], Any], hidden: NativeArray, cu_seqlens: np.ndarray, settings: SparseSettings
) -> Iterator[np.ndarray]:
    """Yield the weights of the vocabulary, (vocabulary,) float32 or float64 in host memory, for each packed text.

    Texts are scored in groups of at most GROUP_TOKENS tokens, longer ones in pieces from their start, so that the order
    of summation does not depend on neighbouring texts. `head` maps (tokens, hidden) to logits (tokens, vocabulary), and
    `cu_seqlens` are the texts' offsets in host memory, (texts + 1,).
    """
    offsets, first = cu_seqlens.tolist(), 0
    while first < len(offsets) - 1:
        last = first + 1
        while last < len(offsets) - 1 and offsets[last + 1] - offsets[first] <= GROUP_TOKENS:
            last += 1
        start, stop = offsets[first], offsets[last]
        if last > first + 1:
            logits = head(hidden[start:stop])
            for left, right in zip(offsets[first:last], offsets[first + 1 : last + 1], strict=True):
                yield _weights([logits[left - start : right - start]], settings)
        else:
            starts = range(start, stop, GROUP_TOKENS)
            yield _weights((head(hidden[at : min(at + GROUP_TOKENS, stop)]) for at in starts), settings)
        first = last


def _weights(pieces: Iterable[NativeArray], settings: SparseSettings) -> np.ndarray:
    """Return the weights of one text from its logits (tokens, vocabulary) in pieces."""
    is_max = settings.strategy == "max"  # of the logits, since the activation is monotonic
    parts = (each.max(axis=0) if is_max else activated(each, settings.activation).sum(axis=0) for each in pieces)
    total = functools.reduce(np.maximum if is_max else np.add, parts)
    return kernels.to_host(activated(total, settings.activation) if is_max else total)


def activated(logits: NativeArray, activation: str) -> NativeArray:
    """Return log(1 + relu(logits)), for "log1p_relu" the logarithm of 1 plus that."""
    xp = kernels.array_module(logits)
    weights = xp.log1p(xp.maximum(logits, 0))
    return xp.log1p(weights) if activation == "log1p_relu" else weights


def as_tensor(embeddings: csr_array, is_sparse: bool) -> torch.Tensor:
    """Convert a sparse array to a PyTorch tensor: sparse (COO), or dense."""
    torch = required("torch")
    if not is_sparse:
        return torch.from_numpy(embeddings.toarray())
    found = embeddings.tocoo()
    places = torch.from_numpy(np.stack([np.asarray(axis, np.int64) for axis in found.coords]))
    return torch.sparse_coo_tensor(places, torch.from_numpy(found.data), found.shape).coalesce()


def like(given: object, found: np.ndarray) -> Any:
    """Return an array as a tensor of PyTorch if `given` is one."""
    return importlib.import_module("torch").from_numpy(found) if hasattr(given, "is_sparse") else found
