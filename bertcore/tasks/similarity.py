"""Similarities of embeddings: the four functions of sentence-transformers, and scaling to length 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore.arguments import check_numbers

BLOCK = 1 << 22  # differences computed at once


def normalized(rows: Any) -> Any:
    """Return rows (texts, dim) scaled to length 1; a row of zeros stays unchanged."""
    lengths = (rows * rows).sum(axis=-1, keepdims=True) ** 0.5
    return rows / lengths.clip(1e-12)  # the floor of torch.nn.functional.normalize


def cos_sim(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cosines (n, m) of the rows of `left` (n, dim) and `right` (m, dim).

    A vector (dim,) is one row. Raises ValueError for other shapes, as all functions here do.
    """
    left, right = _tables(left, right)
    return normalized(left) @ normalized(right).T


def dot_score(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the dot products (n, m) of the rows of `left` and `right`."""
    left, right = _tables(left, right)
    return left @ right.T


def euclidean_sim(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return minus the Euclidean distances (n, m) between the rows of `left` and `right`."""
    return _distances(left, right, lambda difference: (difference * difference).sum(axis=-1) ** 0.5)


def manhattan_sim(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return minus the Manhattan distances (n, m) between the rows of `left` and `right`."""
    return _distances(left, right, lambda difference: np.abs(difference).sum(axis=-1))


def _distances(left: np.ndarray, right: np.ndarray, length: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return minus the lengths of all differences; a few rows of `left` at a time bound the memory."""
    left, right = _tables(left, right)
    scores = np.empty((len(left), len(right)), np.result_type(left, right))
    step = max(1, BLOCK // max(1, right.size))
    for start in range(0, len(left), step):
        scores[start : start + step] = -length(left[start : start + step, None] - right)
    return scores


def _cosine_pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (normalized(left) * normalized(right)).sum(axis=-1)


@dataclass(frozen=True)
class Similarity:
    """A similarity of all rows with all rows, and of rows at the same index."""

    of_all: Callable[[np.ndarray, np.ndarray], np.ndarray]
    of_pairs: Callable[[np.ndarray, np.ndarray], np.ndarray]


SIMILARITIES = {
    "cosine": Similarity(cos_sim, _cosine_pairs),
    "dot": Similarity(dot_score, lambda left, right: (left * right).sum(axis=-1)),
    "euclidean": Similarity(euclidean_sim, lambda left, right: -(((left - right) ** 2).sum(axis=-1) ** 0.5)),
    "manhattan": Similarity(manhattan_sim, lambda left, right: -np.abs(left - right).sum(axis=-1)),
}


def pairwise_similarity(name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the similarity (n,) of that name between left[i] and right[i], both (n, dim).

    Raises ValueError for other shapes.
    """
    left, right = _tables(left, right)
    if left.shape != right.shape:
        raise ValueError(f"left has shape {left.shape}, right {right.shape}, expected the same")
    return SIMILARITIES[name].of_pairs(left, right)


def _tables(left: Any, right: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return both as floating-point tables of the same width."""
    left, right = check_numbers("left", left), check_numbers("right", right)
    if not {left.ndim, right.ndim} <= {1, 2} or left.shape[-1] != right.shape[-1]:
        raise ValueError(f"left has shape {left.shape}, right {right.shape}, expected (n, dim) and (m, dim)")
    left, right = np.atleast_2d(left), np.atleast_2d(right)
    return floating(left), floating(right)


def floating(rows: np.ndarray) -> np.ndarray:
    """Return integers and float16 (their squares overflow) as float32, other arrays unchanged."""
    return rows if rows.dtype.kind == "f" and rows.dtype.itemsize > 2 else rows.astype(np.float32)
