"""Retrieval between the vectors of two kinds of texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """The share of queries whose own candidate is nearest, and the mean reciprocal rank."""

    first: float
    reciprocal_rank: float

    def __str__(self) -> str:
        return f"{self.first:.1%} first, mean reciprocal rank {self.reciprocal_rank:.3f}"


def found(queries: np.ndarray, candidates: np.ndarray) -> Found:
    """Search candidate i with query i, by the largest dot product; equally near candidates share their ranks.

    queries and candidates are (texts, dim), normalized; arrays or sparse matrices.
    """
    scores = queries @ candidates.T
    scores = scores if isinstance(scores, np.ndarray) else scores.toarray()
    own = np.diag(scores)[:, None]
    ranks = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
    return Found(float((ranks == 1).mean()), float((1 / ranks).mean()))
