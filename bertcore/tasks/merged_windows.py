"""Texts of any length as one vector each: those of their windows, put together."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bertcore.tasks.batching import grouped, in_batches
from bertcore.tasks.long_texts import Cutting, Text, Window, windows_of

MERGES = ("mean", "max")


class MergedWindows:
    """One vector of those of a text's windows: their mean, weighted by tokens ("mean"), or each number's highest
    ("max"). It holds one vector, however many windows there are."""

    def __init__(self, merge: str):
        self._merge = merge
        self._vector: Any = None
        self._tokens = self._windows = 0

    def add(self, vector: np.ndarray, tokens: int) -> None:
        """Add a window's vector."""
        self._windows, self._dtype = self._windows + 1, vector.dtype
        if self._merge == "max":
            self._vector = vector if self._vector is None else np.maximum(self._vector, vector)
            return
        share = vector if self._vector is None else vector.astype(np.float64) * max(1, tokens)
        if self._windows == 2:  # the first one was kept as it is: it may be the only one
            self._vector = self._vector.astype(np.float64) * self._tokens
        self._vector = share if self._vector is None else self._vector + share
        self._tokens += max(1, tokens)

    def take(self) -> np.ndarray:
        """The text's vector, in the dtype of its windows'; a single window's has its bits. The next text begins."""
        vector = self._vector
        if self._merge == "mean" and self._windows > 1:
            vector = (vector / self._tokens).astype(self._dtype)
        self._vector, self._tokens, self._windows = None, 0, 0
        return vector


def merged(windows: Iterable[tuple[np.ndarray, int]], merge: str) -> np.ndarray:
    """The vector of a text, of (vector, tokens) of each of its windows."""
    whole = MergedWindows(merge)
    for vector, tokens in windows:
        whole.add(vector, tokens)
    return whole.take()


def merged_vectors(
    texts: Iterable[Text],
    tokenizer: Any,
    cutting: Cutting,
    whole: MergedWindows,
    compute: Callable[[list[Window]], Iterable[Any]],
    batch_tokens: int,
) -> Iterator[list[Any]]:
    """A vector for each text, in their order, in lists of those that are complete after some batches.

    Memory is bounded by `batch_tokens`, however long a text is. `compute` gives a vector for each window of a batch,
    of which `whole` makes those of texts.
    """
    marks: deque[tuple[int, bool]] = deque()  # of each window that was read: its tokens, and whether it is the last
    windows = _all_windows(texts, tokenizer, cutting, marks)
    for vectors in in_batches(windows, batch_tokens, compute, lambda count: None):
        done = []
        for vector in vectors:
            tokens, is_last = marks.popleft()
            whole.add(vector, tokens)
            if is_last:
                done.append(whole.take())
        if done:
            yield done


def _all_windows(
    texts: Iterable[Text], tokenizer: Any, cutting: Cutting, marks: deque[tuple[int, bool]]
) -> Iterator[Window]:
    for group in grouped(texts):
        for windows in windows_of(tokenizer, group, cutting):
            window = next(windows)
            while window is not None:
                after = next(windows, None)
                marks.append((len(window), after is None))
                yield window
                window = after
