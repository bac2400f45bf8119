"""Texts on their way to a model: checked, cut to its length, and counted where they were cut."""

import codecs
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

import numpy as np

from bertcore.arguments import warn_caller
from bertcore.checkpoint import CheckpointError

MOST_TOKENS = 2**31 - 1  # of a text, for models without positions of their own: offsets are int32

Row = TypeVar("Row")


class TextsCutWarning(UserWarning):
    """Texts were longer than the model takes: only the tokens that it takes were read."""


class CutTexts:
    """Counts the texts of a call, and those of them that were cut, for one warning of each owner.

    Args:
        owner: what reads the texts; its `has_warned` says whether it has told that texts were cut.
        max_length: what texts are cut to, in tokens; None where there is no limit.
        positions: how many the model takes; None if there is no limit.
        argument: what the user calls `max_length`.
        reads_windows: whether the owner can read all of a text, with truncation="chunk".
    """

    def __init__(
        self,
        owner: Any,
        max_length: int | None,
        positions: int | None,
        *,
        argument: str = "max_seq_length",
        reads_windows: bool = False,
    ):
        self._owner, self._max_length, self._positions, self._argument = owner, max_length, positions, argument
        self._reads_windows = reads_windows
        self._texts = self._cut = 0

    def count(self, was_cut: bool) -> None:
        """Count a text."""
        self._texts += 1
        self._cut += was_cut

    def counted(self, rows: Iterable[tuple[Row, bool]]) -> Iterator[Row]:
        """The rows of (row, was cut), counted one by one."""
        for row, was_cut in rows:
            self.count(was_cut)
            yield row

    def warn(self) -> None:
        """Warn if any was cut and the owner has not told it yet."""
        if not self._cut or self._owner.has_warned:
            return
        self._owner.has_warned = True
        longer = self._positions and self._max_length and self._positions > self._max_length
        more = f"; the model takes up to {self._positions} ({self._argument})" if longer else ""
        more += "; truncation 'chunk' reads all of them" if self._reads_windows else ""
        warn_caller(
            f"{self._cut} of {self._texts} texts were cut to {self._max_length} tokens{more}. This warning is given "
            "once",
            TextsCutWarning,
        )


def lower_cased(text: str) -> str:
    """The text in lower case as tokenizers write it: each character for itself, a word's last sigma too."""
    return text.replace("\u03a3", "\u03c3").lower()


def too_long(name: str, max_length: int | None) -> ValueError:
    """The error for a text that would be cut where that is refused."""
    return ValueError(
        f"{name} has more than the {max_length} tokens that are read, and truncation is 'error': 'chunk' reads all of "
        "it"
    )


def uncut(rows: Iterable[tuple[Row, bool]], max_length: int, name: str = "texts") -> Iterator[tuple[Row, bool]]:
    """The rows of (row, was cut); ValueError at the first one that was cut."""
    for number, (row, was_cut) in enumerate(rows):
        if was_cut:
            raise too_long(f"{name}[{number}]", max_length)
        yield row, was_cut


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
    expected = "expected a list of strings" if isinstance(texts, str) else "expected a string or a list of strings"
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        hint = "; decode it first" if isinstance(texts, bytes) else ""
        raise TypeError(f"{name} is {type(texts).__name__}, {expected}{hint}")
    axes = len(getattr(texts, "shape", (None,)))
    if axes == 0:  # which says of itself that it can be iterated over
        raise TypeError(f"{name} is an array without axes, {expected}")
    if axes > 1:  # in a loop, a table gives the names of its columns
        raise TypeError(f"{name} is {type(texts).__name__} of {axes} axes, {expected}: take one column of texts")
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


def check_words(name: str, value: Any) -> None:
    """TypeError, ValueError for what is no collection of strings."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise TypeError(f"{name} is {value!r}, expected a list of strings")
    for number, text in enumerate(value):
        checked_text(f"{name}[{number}]", text)


def read_lines(stream: Iterable[bytes], name: str, *, first: int = 1) -> Iterator[str]:
    """Return the lines of UTF-8 bytes, without their ends (LF or CRLF); ValueError names a line that is not UTF-8.

    `first` is the number of the first line, for a stream that does not begin with the file.
    """
    for number, line in enumerate(stream, first):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} ({line[error.start]:#04x}) is not UTF-8; "
                "convert the text first, for example with iconv -t utf-8"
            ) from error
