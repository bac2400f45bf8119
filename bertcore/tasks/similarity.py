"""Similarities of embeddings, and scaling to length 1."""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from bertcore import kernels
from bertcore.arguments import as_float32, check_count, check_numbers
from bertcore.kernels.arrays import Array, ArrayLike, NativeArray

TokenVectors: TypeAlias = Array | Sequence[Array]  # (tokens, dim) of one text or several, or (texts, tokens, dim)
BLOCK = 1 << 22  # differences computed at once


def normalized(rows: NativeArray) -> NativeArray:
    """Return rows (texts, dim) scaled to length 1; a row of zeros stays unchanged."""
    lengths = (rows * rows).sum(axis=-1, keepdims=True) ** 0.5
    return rows / np.maximum(lengths, 1e-12)  # the floor of torch.nn.functional.normalize


def _like_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of arrays, or lists of them, to return a PyTorch tensor if one of them is a tensor."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        torch = sys.modules.get("torch")
        arrays = [
            next(iter(each), None) if isinstance(each, list | tuple) else each for each in (*args, *given.values())
        ]
        if torch is None or not any(isinstance(each, torch.Tensor) for each in arrays):
            return function(*args, **given)
        return torch.from_numpy(function(*args, **given))

    return call


@_like_given
def normalize_embeddings(embeddings: np.ndarray) -> np.ndarray:
    """Return embeddings, (n, dim) or (dim,), scaled to length 1."""
    return normalized(floating(check_numbers("embeddings", embeddings)))


@_like_given
def truncate_embeddings(embeddings: np.ndarray, truncate_dim: int | None) -> np.ndarray:
    """Return the first `truncate_dim` dimensions of embeddings, (n, dim) or (dim,); all for None."""
    count = None if truncate_dim is None else check_count("truncate_dim", truncate_dim)
    return check_numbers("embeddings", embeddings)[..., :count]


@_like_given
def cos_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosines (n, m) of the rows of `a` (n, dim) and `b` (m, dim).

    A vector (dim,) counts as one row; PyTorch tensors give a tensor. Like all functions here, raises ValueError for
    other shapes.
    """
    a, b = _tables(a, b)
    return normalized(a) @ normalized(b).T


@_like_given
def dot_score(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the dot products (n, m) of the rows of `a` and `b`."""
    a, b = _tables(a, b)
    return a @ b.T


@_like_given
def euclidean_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return minus the Euclidean distances (n, m) between the rows of `a` and `b`."""
    return _distances(a, b, lambda difference: (difference * difference).sum(axis=-1) ** 0.5)


@_like_given
def manhattan_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return minus the Manhattan distances (n, m) between the rows of `a` and `b`."""
    return _distances(a, b, lambda difference: np.abs(difference).sum(axis=-1))


def _distances(a: np.ndarray, b: np.ndarray, length: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return minus the lengths of all differences; a few rows of `a` at a time bound the memory."""
    a, b = _tables(a, b)
    scores = np.empty((len(a), len(b)), np.result_type(a, b))
    step = max(1, BLOCK // max(1, b.size))
    for start in range(0, len(a), step):
        scores[start : start + step] = -length(a[start : start + step, None] - b)
    return scores


@_like_given
def pairwise_cos_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosines (n,) of a[i] and b[i], both (n, dim)."""
    a, b = _pairs(a, b)
    return (normalized(a) * normalized(b)).sum(axis=-1)


@_like_given
def pairwise_dot_score(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the dot products (n,) of a[i] and b[i], both (n, dim)."""
    a, b = _pairs(a, b)
    return (a * b).sum(axis=-1)


@_like_given
def pairwise_euclidean_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return minus the Euclidean distances (n,) between a[i] and b[i], both (n, dim)."""
    a, b = _pairs(a, b)
    return -(((a - b) ** 2).sum(axis=-1) ** 0.5)


@_like_given
def pairwise_manhattan_sim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return minus the Manhattan distances (n,) between a[i] and b[i], both (n, dim)."""
    a, b = _pairs(a, b)
    return -np.abs(a - b).sum(axis=-1)


@_like_given
def pairwise_angle_sim(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the angle similarities (n,) of x[i] and y[i], both (n, dim), whose halves are real and imaginary parts.

    This is the absolute value of the real plus the imaginary part of x[i]'s product with the conjugate of y[i], both
    scaled to length 1 (Li and Li 2024, arXiv:2309.12871). An odd dimension gets a zero at the end.
    """
    x, y = (np.pad(normalized(rows), ((0, 0), (0, rows.shape[1] % 2))) for rows in _pairs(x, y, ("x", "y")))
    half = x.shape[1] // 2
    imaginary = (x[:, half:] * y[:, :half] - x[:, :half] * y[:, half:]).sum(axis=-1)
    return np.abs((x * y).sum(axis=-1) + imaginary)


EMPTY_DOCUMENT = -1e9  # the score of a document without vectors, as in sentence-transformers
AT_ONCE = 1 << 24  # query tokens times documents that are scored at once


@_like_given
def maxsim(a: TokenVectors, b: TokenVectors, *, length_normalize: bool = False) -> Any:
    """Return the late-interaction scores (n, m) of queries and documents, float32.

    A score is the sum over the query's vectors of the highest dot product with a vector of the document. The active
    backend computes it; PyTorch tensors give a tensor.

    Args:
        a: the queries: a list of (tokens, dim), a padded array (n, tokens, dim), in which rows of zeros are
            ignored, or one (tokens, dim).
        b: the documents, in the same forms.
        length_normalize: divide each score by the number of the query's vectors.

    Raises TypeError or ValueError for anything else.
    """
    queries, documents = token_vectors("a", a), token_vectors("b", b)
    step = max(1, AT_ONCE // max(sum(map(len, queries)), 1))
    blocks = [_scores(queries, documents[at : at + step]) for at in range(0, len(documents), step)]
    scores = np.concatenate([np.zeros((len(queries), 0), np.float32), *blocks], axis=1)
    if length_normalize:
        scores /= np.array([max(len(query), 1) for query in queries], np.float32)[:, None]
    return scores


@_like_given
def maxsim_pairwise(a: TokenVectors, b: TokenVectors, *, length_normalize: bool = False) -> Any:
    """Return the late-interaction scores (n,) of the query and the document at the same index; as `maxsim`."""
    queries, documents = token_vectors("a", a), token_vectors("b", b)
    if len(queries) != len(documents):
        raise ValueError(f"a has {len(queries)} texts, b {len(documents)}, expected the same number")
    found = [_scores([query], [document])[0, 0] for query, document in zip(queries, documents, strict=True)]
    counts = [max(len(query), 1) if length_normalize else 1 for query in queries]
    return np.array(found, np.float32) / np.array(counts, np.float32)


def token_vectors(name: str, embeddings: TokenVectors) -> list[np.ndarray]:
    """Return the vectors of texts as a list of float32 (tokens, dim)."""
    if not isinstance(embeddings, list | tuple):
        array = check_numbers(name, embeddings)
        if array.ndim == 3:
            embeddings = [text[text.any(axis=1)] for text in array]
        elif array.ndim == 2:
            embeddings = [array]
        else:
            raise ValueError(f"{name} has shape {array.shape}, expected (texts, tokens, dim) or (tokens, dim)")
    found = [check_numbers(f"{name}[{index}]", each) for index, each in enumerate(embeddings)]
    for index, each in enumerate(found):
        if each.ndim != 2 or each.shape[1] != found[0].shape[-1]:
            expected = f"(tokens, {found[0].shape[1]})" if found[0].ndim == 2 else "(tokens, dim)"
            raise ValueError(f"{name}[{index}] has shape {each.shape}, expected {expected}")
    return [as_float32(f"{name}[{index}]", each) for index, each in enumerate(found)]


def _scores(queries: list[np.ndarray], documents: list[np.ndarray]) -> np.ndarray:
    """Return the scores of some documents; the kernel needs at least one query and one document."""
    if not queries or not documents:
        return np.zeros((len(queries), len(documents)), np.float32)
    if queries[0].shape[1] != documents[0].shape[1]:
        raise ValueError(f"a has vectors of {queries[0].shape[1]}, b of {documents[0].shape[1]}, expected equal widths")
    given = []
    for texts in (queries, documents):
        offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        given += [kernels.to_backend(np.concatenate(texts)), kernels.to_backend(offsets)]
    scores = kernels.to_host(kernels.maxsim(given[0], given[2], given[3], cu_seqlens_q=given[1]))
    scores[:, [not len(document) for document in documents]] = EMPTY_DOCUMENT
    return scores


@dataclass(frozen=True)
class Similarity:
    """A similarity of all rows with all rows, and of rows at the same index."""

    of_all: Callable[[np.ndarray, np.ndarray], np.ndarray]
    of_pairs: Callable[[np.ndarray, np.ndarray], np.ndarray]


SIMILARITIES = {
    "cosine": Similarity(cos_sim, pairwise_cos_sim),
    "dot": Similarity(dot_score, pairwise_dot_score),
    "euclidean": Similarity(euclidean_sim, pairwise_euclidean_sim),
    "manhattan": Similarity(manhattan_sim, pairwise_manhattan_sim),
}


class SimilarityFunction(StrEnum):
    """The names of similarities, for `similarity_fn_name`, `main_similarity` and the like; each is a string."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    MAXSIM = "maxsim"
    MEAN_MAXSIM = "meanmaxsim"


def _pairs(first: ArrayLike, second: ArrayLike, names: tuple[str, str] = ("a", "b")) -> tuple[np.ndarray, np.ndarray]:
    """Return both as floating-point tables of the same shape."""
    first, second = _tables(first, second, names)
    if first.shape != second.shape:
        raise ValueError(f"{names[0]} has shape {first.shape}, {names[1]} {second.shape}, expected the same")
    return first, second


def _tables(first: ArrayLike, second: ArrayLike, names: tuple[str, str] = ("a", "b")) -> tuple[np.ndarray, np.ndarray]:
    """Return both as floating-point tables of the same width; `names` are those of the arguments."""
    first, second = check_numbers(names[0], first), check_numbers(names[1], second)
    if not {first.ndim, second.ndim} <= {1, 2} or first.shape[-1] != second.shape[-1]:
        shapes = f"{names[0]} has shape {first.shape}, {names[1]} {second.shape}"
        raise ValueError(f"{shapes}, expected (n, dim) and (m, dim)")
    return floating(np.atleast_2d(first)), floating(np.atleast_2d(second))


def floating(rows: np.ndarray) -> np.ndarray:
    """Return integers and float16 (their squares overflow) as float32, other arrays unchanged."""
    return rows if rows.dtype.kind == "f" and rows.dtype.itemsize > 2 else rows.astype(np.float32)
