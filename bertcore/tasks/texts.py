"""Texts on their way to a model: checked, cut to its length, and counted where they were cut."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

import numpy as np

from bertcore.checkpoint import CheckpointError
from bertcore.tasks.long_texts import TextsCutWarning

MOST_TOKENS = 2**31 - 1  # of a text, for models without positions of their own: offsets are int32


Row = TypeVar("Row")


class CutTexts:
    """Counts the texts of a call, and those of them that were cut, for one warning of each model.

    Attributes:
        length: what texts are cut to, in tokens.
        positions: how many the model takes; None if there is no limit.
    """

    def __init__(self, length: int, positions: int | None):
        self.length, self.positions = length, positions
        self._has_warned = False

    def counted(self, rows: Iterable[tuple[Row, bool]], total: list[int]) -> Iterator[Row]:
        """The rows of (row, was cut), counted in a call's `total`: [texts, cut]."""
        for row, was_cut in rows:
            total[0] += 1
            total[1] += was_cut
            yield row

    def warn(self, total: list[int], *, stacklevel: int) -> None:
        """Warn if any was cut and this has not been told yet."""
        if not total[1] or self._has_warned:
            return
        self._has_warned = True
        longer = self.positions and self.positions > self.length
        more = f"; the model takes up to {self.positions} (max_seq_length)" if longer else ""
        warnings.warn(
            f"{total[1]} of {total[0]} texts were cut to {self.length} tokens{more}. This warning is given once",
            TextsCutWarning,
            stacklevel=stacklevel + 1,
        )


def sequence_length(wanted: int | None, published: int, positions: int | None, special: int, where: Any) -> int:
    """Where texts are cut, in tokens: `wanted`, by default as published, but never beyond the model's positions.

    Raises:
        ValueError: a `wanted` out of range.
        CheckpointError: a published length that has no room for the special tokens.
    """
    least, most = max(1, special), positions or MOST_TOKENS  # an empty text has its special tokens
    expected = f"expected {least} (the special tokens of a text) to {most}, the model's positions"
    if wanted is None:
        if min(published, most) < least:
            raise CheckpointError(f"{where}: max_seq_length is {published}, {expected}")
        return min(published, most)
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or not least <= wanted <= most:
        raise ValueError(f"max_seq_length is {wanted!r}, {expected}")
    return int(wanted)


def checked_texts(texts: Any, name: str = "texts") -> Iterator[str]:
    """The texts one by one, each seen to be a string."""
    expected = "expected a string or a list of strings"
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        hint = "; decode it first" if isinstance(texts, bytes) else ""
        raise TypeError(f"{name} is {type(texts).__name__}, {expected}{hint}")
    if isinstance(texts, np.ndarray) and texts.ndim == 0:  # which says of itself that it can be iterated over
        raise TypeError(f"{name} is an array without axes, {expected}")
    return (checked_text(f"{name}[{index}]", text) for index, text in enumerate(texts))


def checked_text(name: str, text: Any, expected: str = "str") -> str:
    """The text, if it is a string that can be written as UTF-8; TypeError or ValueError name it."""
    if not isinstance(text, str):
        hint = ": decode it first" if isinstance(text, bytes) else ""
        raise TypeError(f"{name} is {type(text).__name__}, expected {expected}{hint}")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode: a lone surrogate at {error.start}") from error
    return text


def checked_batch_tokens(value: Any) -> int:
    """A positive number of tokens; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"batch_tokens is {value!r}, expected a positive integer")
    return int(value)
