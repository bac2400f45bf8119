"""From the hidden states of a text's tokens to a weight for each word of the vocabulary."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.tasks.sparse_encoder.settings import SparseSettings

GROUP_TOKENS = 128  # whose logits are in memory at once: 16 MB with BERT's vocabulary


def pooled_words(
    head: Callable[[Any], Any], hidden: Any, cu_seqlens: np.ndarray, settings: SparseSettings
) -> Iterator[np.ndarray]:
    """The weights of all words, (words,) float32 or float64 in host memory, of one packed text after the other.

    Texts are scored in groups of at most GROUP_TOKENS tokens, longer ones in pieces from their own start, so that the
    order of a sum does not depend on the text's neighbours.

    Args:
        head: (tokens, hidden) -> logits (tokens, words).
        hidden: (tokens, hidden).
        cu_seqlens: offsets of the texts in host memory, (texts + 1,).
        settings: how logits become weights.
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


def _weights(pieces: Any, settings: SparseSettings) -> np.ndarray:
    """The weights of one text, of its logits (tokens, words) in pieces."""
    total = None
    for logits in pieces:
        if settings.strategy == "max":  # of the logits: the logarithm grows with them
            part = logits.max(axis=0)
            total = part if total is None else kernels.array_module(part).maximum(total, part)
        else:
            part = _activated(logits, settings.activation).sum(axis=0)
            total = part if total is None else total + part
    total = _activated(total, settings.activation) if settings.strategy == "max" else total
    return kernels.to_host(total)


def _activated(logits: Any, activation: str) -> Any:
    xp = kernels.array_module(logits)
    weights = xp.log1p(xp.maximum(logits, 0))
    return xp.log1p(weights) if activation == "log1p_relu" else weights
