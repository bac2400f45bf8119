"""From the hidden states of a text's tokens to one vector."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bertcore import kernels


def _cls(tokens: Any, skipped: int) -> Any:
    return tokens[skipped]


def _max(tokens: Any, skipped: int) -> Any:
    return tokens[skipped:].max(axis=0)


def _mean(tokens: Any, skipped: int) -> Any:
    return tokens[skipped:].sum(axis=0) / (tokens.shape[0] - skipped)


def _mean_sqrt_len(tokens: Any, skipped: int) -> Any:
    return tokens[skipped:].sum(axis=0) / (tokens.shape[0] - skipped) ** 0.5


def _weighted_mean(tokens: Any, skipped: int) -> Any:
    """The n-th token of the text has weight n (Muennighoff 2022, arXiv:2202.08904)."""
    weights = kernels.array_module(tokens).arange(skipped + 1, tokens.shape[0] + 1, dtype=tokens.dtype)
    return (tokens[skipped:] * weights[:, None]).sum(axis=0) / weights.sum()


def _last(tokens: Any, skipped: int) -> Any:
    return tokens[-1]


# One text's (tokens, hidden), and how many of its first tokens do not count -> (hidden,), by the name that
# sentence-transformers gives the mode.
POOLING: dict[str, Callable[[Any, int], Any]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pool(hidden: Any, cu_seqlens: np.ndarray, modes: Sequence[str], skipped: int = 0) -> Any:
    """The pooled vectors of packed texts, several modes side by side; zeros for a text without tokens.

    Each text is summed on its own, in the order of its tokens, so that its neighbours cannot change its last bits.

    Args:
        hidden: (tokens, hidden), any floating dtype; half precision is pooled in float32.
        cu_seqlens: offsets of the texts in host memory, (texts + 1,).
        modes: names from POOLING.
        skipped: how many of the first tokens of each text do not count.

    Returns:
        (texts, hidden * modes) in the memory of `hidden`, float32 or float64.
    """
    xp = kernels.array_module(hidden)
    if hidden.dtype.itemsize < 4:
        hidden = hidden.astype(xp.float32)
    texts, width = len(cu_seqlens) - 1, hidden.shape[1]
    pooled = xp.zeros((texts, len(modes), width), hidden.dtype)
    for index, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if stop - start > skipped:
            for slot, mode in enumerate(modes):
                pooled[index, slot] = POOLING[mode](hidden[start:stop], skipped)
    return pooled.reshape(texts, len(modes) * width)
