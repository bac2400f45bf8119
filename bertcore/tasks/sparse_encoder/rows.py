"""The words of a text and their weights, and how those of windows become those of a text."""

from typing import NamedTuple

import numpy as np

from bertcore.tasks.merged_windows import MergedWindows


class SparseRow(NamedTuple):
    """The words of one text: their ids in the vocabulary, int32 and ascending, and their weights, float32."""

    indices: np.ndarray
    values: np.ndarray


def sparse_row(weights: np.ndarray, most: int | None) -> SparseRow:
    """The words that have a weight, the `most` greatest of them; of equal ones the first."""
    indices = np.flatnonzero(weights)
    if most is not None and len(indices) > most:
        indices = np.sort(indices[np.argsort(-weights[indices], kind="stable")[:most]])
    return SparseRow(indices.astype(np.int32), weights[indices].astype(np.float32))


class MergedWords(MergedWindows):
    """One row of those of a text's windows, each of all its words; at most `most` words of it are kept."""

    def __init__(self, merge: str, words: int, most: int | None):
        super().__init__(merge)
        self._words, self._most = words, most

    def add(self, row: SparseRow, tokens: int) -> None:
        """Add a window's words."""
        weights = np.zeros(self._words, np.float32)
        weights[row.indices] = row.values
        super().add(weights, tokens)

    def take(self) -> SparseRow:
        """The text's words; the next text begins."""
        return sparse_row(super().take(), self._most)
