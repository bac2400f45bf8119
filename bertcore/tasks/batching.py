"""Which texts are computed together: memory is bounded by tokens, never by the number of texts."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# Texts are sorted by length within a window of this many batches: enough for batches of like lengths, and little
# enough that a stream gives its first results soon.
BATCHES_PER_WINDOW = 16

# Texts go to the tokenizer in groups of at most this many texts and (but for a longer single text) characters.
GROUP_TEXTS = 256
GROUP_CHARACTERS = 1 << 18


def grouped(texts: Iterable[str]) -> Iterator[list[str]]:
    """Neighbouring texts in groups small enough to be tokenized at once."""
    group, characters = [], 0
    for text in texts:
        if group and (len(group) == GROUP_TEXTS or characters + len(text) > GROUP_CHARACTERS):
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group


def windows(sequences: Iterable[np.ndarray], batch_tokens: int) -> Iterator[list[np.ndarray]]:
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
