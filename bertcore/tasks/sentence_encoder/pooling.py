"""From the hidden states of a text's tokens to one vector."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bertcore import kernels


def _mean(tokens: Any) -> Any:
    return tokens.sum(axis=0) / tokens.shape[0]


def _mean_sqrt_len(tokens: Any) -> Any:
    return tokens.sum(axis=0) / tokens.shape[0] ** 0.5


# One text's (tokens, hidden) -> (hidden,), by the name that sentence-transformers gives the mode.
POOLING: dict[str, Callable[[Any], Any]] = {
    "cls": lambda tokens: tokens[0],
    "max": lambda tokens: tokens.max(axis=0),
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
}


def pool(hidden: Any, cu_seqlens: np.ndarray, modes: Sequence[str]) -> np.ndarray:
    """The pooled vectors of packed texts, several modes side by side; zeros for a text without tokens.

    Each text is summed on its own, in the order of its tokens, so that its neighbours cannot change its last bits.

    Args:
        hidden: (tokens, hidden), any floating dtype; half precision is pooled in float32.
        cu_seqlens: offsets of the texts in host memory, (texts + 1,).
        modes: names from POOLING.

    Returns:
        (texts, hidden * modes) in host memory, float32 or float64.
    """
    xp = kernels.array_module(hidden)
    if hidden.dtype.itemsize < 4:
        hidden = hidden.astype(xp.float32)
    texts, width = len(cu_seqlens) - 1, hidden.shape[1]
    pooled = xp.zeros((texts, len(modes), width), hidden.dtype)
    for index, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if stop > start:
            for slot, mode in enumerate(modes):
                pooled[index, slot] = POOLING[mode](hidden[start:stop])
    pooled = pooled.reshape(texts, len(modes) * width)
    return pooled if xp is np else pooled.get()


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows (texts, dim) scaled to length 1; a row of zeros stays as it is."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)  # the floor of torch.nn.functional.normalize


def cosine_similarity(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The cosine of every row of `left` (n, dim) with every row of `right` (m, dim): (n, m).

    Raises ValueError for other shapes.
    """
    left, right = np.asarray(left), np.asarray(right)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(f"left has shape {left.shape}, right {right.shape}, expected (n, dim) and (m, dim)")
    return normalized(left) @ normalized(right).T
