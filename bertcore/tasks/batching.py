"""Which texts are computed together: memory is bounded by tokens, never by the number of texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar

import numpy as np

from bertcore.arguments import warn_caller

BATCH_TOKENS = 4096  # computed at once, by default

Row = TypeVar("Row", bound=Sized)

# Texts are sorted by length within a window of this many batches: enough for batches of like lengths, and little
# enough that a stream gives its first results soon.
BATCHES_PER_WINDOW = 16

# Texts go to the tokenizer in groups of at most this many texts and (but for a longer single text) characters.
GROUP_TEXTS = 256
GROUP_CHARACTERS = 1 << 18


def grouped(texts: Iterable[Any], characters_of: Callable[[Any], int] = len) -> Iterator[list[Any]]:
    """Neighbouring texts in groups small enough to be tokenized at once."""
    group, characters = [], 0
    for text in texts:
        size = characters_of(text)
        if group and (len(group) == GROUP_TEXTS or characters + size > GROUP_CHARACTERS):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += size
    if group:
        yield group


def windows(sequences: Iterable[Row], batch_tokens: int) -> Iterator[list[Row]]:
    """Neighbouring token sequences in lists of about BATCHES_PER_WINDOW batches' worth of tokens."""
    window, tokens = [], 0
    for sequence in sequences:
        window.append(sequence)
        tokens += max(1, len(sequence))
        if tokens >= BATCHES_PER_WINDOW * batch_tokens:
            yield window
            window, tokens = [], 0
    if window:
        yield window


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of texts that are computed together: at most `batch_tokens` tokens, or one text that has more.

    The longest texts come first, so that what does not fit into memory fails at once and not after an hour.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    start, tokens = 0, 0
    for stop, index in enumerate(order):
        if stop > start and tokens + lengths[index] > batch_tokens:
            yield order[start:stop]
            start, tokens = stop, 0
        tokens += lengths[index]
    if len(order):
        yield order[start:]


class BatchHalvedWarning(UserWarning):
    """The memory did not suffice for a batch, which was computed in halves."""


def by_halves(compute: Callable[[list[Row]], Iterable[Any]], rows: list[Row]) -> list[Any]:
    """compute(rows), which gives a result for each row; where memory does not suffice for all of them (MemoryError, as
    CuPy's and NumPy's errors are), that of one half and then that of the other.

    Raises MemoryError where it does not suffice for a row alone.
    """
    try:
        return list(compute(rows))
    except MemoryError as error:
        if len(rows) < 2:
            raise
        warn_caller(
            f"{error}: a batch of {len(rows)} texts, {sum(map(len, rows))} tokens, is computed in halves; a lower "
            "batch_tokens would save the attempt",
            BatchHalvedWarning,
        )
    middle = len(rows) // 2  # after the error is gone, and with it what it keeps alive
    return by_halves(compute, rows[:middle]) + by_halves(compute, rows[middle:])


def in_batches(
    sequences: Iterable[Row],
    batch_tokens: int,
    compute: Callable[[list[Row]], Iterable[Any]],
    advance: Callable[[int], object],
) -> Iterator[list[Any]]:
    """What `compute` makes of the sequences, in their order, in lists of a window each.

    Args:
        sequences: rows of tokens.
        batch_tokens: how many tokens are computed at once.
        compute: takes the rows of a batch, and gives a result for each.
        advance: is told how many rows were just done.
    """
    for window in windows(sequences, batch_tokens):
        results: list[Any] = [None] * len(window)
        for indices in batches([len(sequence) for sequence in window], batch_tokens):
            for index, result in zip(indices, by_halves(compute, [window[index] for index in indices]), strict=True):
                results[index] = result
            advance(len(indices))
        yield results
