"""From the hidden states of a padded batch to one vector for each text, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bertcore import kernels

POOLING = ("mean", "cls")


def pooled(hidden: Any, mask: Any, mode: str) -> tuple[Any, Callable[[Any], Any]]:
    """A vector for each text, and what turns its gradient into that of the hidden states.

    Args:
        hidden: (texts, length, features), zeros at padding.
        mask: 1 for real tokens, (texts, length); None if all are.
        mode: "mean" of the real tokens, or "cls", the first of them; as bertcore.tasks.sentence_encoder pools.

    Returns:
        (texts, features), zeros for a text without tokens; and a function that takes and returns arrays of these
        shapes.
    """
    xp = kernels.array_module(hidden)
    is_real = xp.ones(hidden.shape[:2], bool) if mask is None else xp.asarray(mask) != 0
    if mode == "cls":
        rows, has_tokens = xp.arange(len(hidden)), is_real.any(axis=1)[:, None].astype(hidden.dtype)
        first = is_real.argmax(axis=1)

        def spread(grad):
            whole = xp.zeros(hidden.shape, grad.dtype)
            whole[rows, first] = grad * has_tokens
            return whole

        return hidden[rows, first] * has_tokens, spread
    counts = xp.maximum(is_real.sum(axis=1), 1).astype(hidden.dtype)[:, None]
    real = is_real[:, :, None].astype(hidden.dtype)
    return hidden.sum(axis=1) / counts, lambda grad: real * (grad / counts)[:, None]
