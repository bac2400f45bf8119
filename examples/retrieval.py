"""How well vectors of one kind of text find those of another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """How often the right one is nearest, and the mean reciprocal rank."""

    first: float
    reciprocal_rank: float

    def __str__(self) -> str:
        return f"{self.first:.1%} first, mean reciprocal rank {self.reciprocal_rank:.3f}"


def found(queries: np.ndarray, candidates: np.ndarray) -> Found:
    """Query i is to find candidate i by the largest dot product; with equally near ones it shares their ranks.

    Args:
        queries, candidates: (texts, dim), of length 1; arrays or sparse matrices.
    """
    scores = queries @ candidates.T
    scores = scores if isinstance(scores, np.ndarray) else scores.toarray()
    own = np.diag(scores)[:, None]
    ranks = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
    return Found(float((ranks == 1).mean()), float((1 / ranks).mean()))
