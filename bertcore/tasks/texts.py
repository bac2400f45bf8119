"""Prepare texts for a model: checks, truncation and its warning, batches, and progress."""

import codecs
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO, TypeVar

import numpy as np

from bertcore.arguments import check_strings, warn_caller
from bertcore.checkpoint import CheckpointError
from bertcore.kernels import checks

LONGEST_LINE = 1 << 26  # bytes
MOST_TOKENS = 2**31 - 1  # longest text of a model without a limit of positions: offsets are int32

Row = TypeVar("Row")


class TextsCutWarning(UserWarning):
    """Texts were longer than the model accepts and were cut."""


class CutTexts:
    """Count the texts of a call and how many were cut, for one warning per owner.

    Args:
        owner: the reader of the texts; its `has_warned` says whether it has already warned.
        max_length: length that texts are cut to, in tokens; None for no limit.
        positions: the model's number of positions; None for no limit.
        argument: the user's name of `max_length`.
        reads_windows: whether the owner can read a whole text with truncation="chunk".
        limit: `max_length` in words, where tokens are not the only limit.
    """

    def __init__(
        self,
        owner: Any,
        max_length: int | None,
        positions: int | None,
        *,
        argument: str = "max_seq_length",
        reads_windows: bool = False,
        limit: str | None = None,
    ):
        self._owner, self._max_length, self._positions, self._argument = owner, max_length, positions, argument
        self._limit = limit or f"{max_length} tokens"
        self._reads_windows = reads_windows
        self._texts = self._cut = 0

    def count(self, was_cut: bool) -> None:
        """Count a text."""
        self._texts += 1
        self._cut += was_cut

    def counted(self, rows: Iterable[tuple[Row, bool]], refused: str | None = None) -> Iterator[Row]:
        """Yield the row of each (row, was cut), and count it.

        Raises ValueError at the first text that was cut if `refused`, the name of the texts, is given.
        """
        for number, (row, was_cut) in enumerate(rows):
            if was_cut and refused is not None:
                raise too_long(f"{refused}[{number}]", self._limit, self._reads_windows)
            self.count(was_cut)
            yield row

    def warn(self) -> None:
        """Warn if any text was cut and the owner has not warned yet."""
        if not self._cut or self._owner.has_warned:
            return
        self._owner.has_warned = True
        longer = self._positions and self._max_length and self._positions > self._max_length
        more = f"; the model takes up to {self._positions} ({self._argument})" if longer else ""
        more += "; truncation 'chunk' reads all of them" if self._reads_windows else ""
        warn_caller(
            f"{self._cut} of {self._texts} texts were cut to {self._limit}{more}. This warning is given once",
            TextsCutWarning,
        )


def lower_cased(text: str) -> str:
    """Return the text in lower case as tokenizers write it: character by character, a word's final sigma included."""
    return text.replace("\u03a3", "\u03c3").lower()


def too_long(name: str, limit: str, reads_windows: bool = True) -> ValueError:
    """Return the error for a text that is too long with truncation="error"."""
    advice = ": 'chunk' reads all of it" if reads_windows else ""
    return ValueError(f"{name} has more than the {limit} that are read, and truncation is 'error'{advice}")


def sequence_length(wanted: int | None, published: int, positions: int | None, special: int, where: object) -> int:
    """Return the length that texts are cut to: `wanted`, by default as published, at most the model's positions.

    Raises:
        ValueError: `wanted` is out of range.
        CheckpointError: the published length is too short for the special tokens.
    """
    least, most = max(1, special), positions or MOST_TOKENS  # an empty text consists of special tokens
    expected = f"expected {least} (the special tokens of a text) to {most}, the model's positions"
    if wanted is None:
        if min(published, most) < least:
            raise CheckpointError(f"{where}: max_seq_length is {published}, {expected}")
        return min(published, most)
    is_integer = isinstance(wanted, int | np.integer) and not isinstance(wanted, bool)
    if not is_integer or not least <= wanted <= most:
        raise (ValueError if is_integer else TypeError)(f"max_seq_length is {wanted!r}, {expected}")
    return int(wanted)


def checked_texts(texts: object, name: str = "texts") -> Iterator[str]:
    """Yield the texts one by one after checking that each is a string."""
    expected = "expected a list of strings" if isinstance(texts, str) else "expected a string or a list of strings"
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        hint = "; decode it first" if isinstance(texts, bytes) else ""
        raise TypeError(f"{name} is {type(texts).__name__}, {expected}{hint}")
    axes = len(getattr(texts, "shape", (None,)))
    if axes == 0:  # isinstance says that it is iterable
        raise TypeError(f"{name} is an array without axes, {expected}")
    if axes > 1:  # iterating over a table yields the names of its columns
        raise TypeError(f"{name} is {type(texts).__name__} of {axes} axes, {expected}: take one column of texts")
    return (  # a name is made only for an error
        text if isinstance(text, str) and text.isascii() else checked_text(f"{name}[{index}]", text)
        for index, text in enumerate(texts)
    )


def listed_texts(inputs: object, name: str = "inputs") -> list[str]:
    """Return the argument `inputs` of a call, one text or several, as a list of checked texts."""
    return [checked_text(name, inputs)] if isinstance(inputs, str) else list(checked_texts(inputs, name))


def checked_text(name: str, text: object, expected: str = "str") -> str:
    """Return the text. Raises TypeError if it is not a string, ValueError if it cannot be written as UTF-8."""
    if not isinstance(text, str):
        hint = ": decode it first" if isinstance(text, bytes) else ""
        raise TypeError(f"{name} is {type(text).__name__}, expected {expected}{hint}")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode: a lone surrogate at {error.start}") from error
    return text


def check_words(name: str, value: object) -> None:
    """Raise TypeError or ValueError for anything but a collection of strings."""
    for number, text in enumerate(check_strings(name, value)):
        checked_text(f"{name}[{number}]", text)


def bounded_lines(stream: BinaryIO, name: str, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of a stream as they are. Raises ValueError for one of more than LONGEST_LINE bytes."""
    for number in itertools.count(first):
        if len(line := stream.readline(LONGEST_LINE + 1)) > LONGEST_LINE:
            raise ValueError(f"{name}, line {number}: more than {LONGEST_LINE} bytes, expected texts, one a line")
        if not line:
            return
        yield line


def read_lines(stream: BinaryIO, name: str, first: int = 1, most: int | None = None) -> Iterator[str]:
    """Yield the lines of UTF-8 bytes, at most `most`, without their ends (LF or CRLF).

    `first` is the number of the first line, for a stream that does not begin with the file. Raises ValueError for a
    line that is not UTF-8, or has more than LONGEST_LINE bytes.
    """
    for number, line in enumerate(itertools.islice(bounded_lines(stream, name, first), most), first):
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


BATCH_TOKENS = 4096  # default number of tokens computed at once

Tokens = TypeVar("Tokens", bound=Sized)

# Texts are sorted by length within a window of this many batches: enough for batches of similar lengths, and few
# enough for a stream to return its first results soon.
BATCHES_PER_WINDOW = 16

# Texts are tokenized in groups of at most this many texts and characters (a longer text is a group by itself).
GROUP_TEXTS = 256
GROUP_CHARACTERS = 1 << 18


def grouped(texts: Iterable[Any], characters_of: Callable[[Any], int] = len) -> Iterator[list[Any]]:
    """Yield neighbouring texts in groups small enough to be tokenized at once."""
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


def windows(sequences: Iterable[Tokens], batch_tokens: int) -> Iterator[list[Tokens]]:
    """Yield neighbouring token sequences in lists of about BATCHES_PER_WINDOW batches."""
    window, tokens = [], 0
    for sequence in sequences:
        window.append(sequence)
        tokens += len(sequence) or 1
        if tokens >= BATCHES_PER_WINDOW * batch_tokens:
            yield window
            window, tokens = [], 0
    if window:
        yield window


def batches(lengths: Sequence[int], batch_tokens: int, batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield the indices of texts that are computed together: at most `batch_tokens` tokens, or one longer text.

    `batch_size` is the greatest number of texts.

    The longest texts come first, so that a lack of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start, tokens = 0, 0
    for stop, index in enumerate(order):
        if stop > start and (tokens + lengths[index] > batch_tokens or stop - start == batch_size):
            yield order[start:stop]
            start, tokens = stop, 0
        tokens += lengths[index]
    if order:
        yield order[start:]


class BatchHalvedWarning(UserWarning):
    """A batch did not fit into memory and was computed in halves."""


def by_halves(compute: Callable[[list[Tokens]], Iterable[Any]], rows: list[Tokens]) -> list[Any]:
    """Return compute(rows), one result per row; if they do not fit into memory, compute one half after the other.

    Raises MemoryError if a single row does not fit. NumPy's and CuPy's errors are MemoryErrors.
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
    middle = len(rows) // 2  # after the except block, so that the error keeps no arrays alive
    return by_halves(compute, rows[:middle]) + by_halves(compute, rows[middle:])


def in_batches(
    sequences: Iterable[Tokens],
    batch_tokens: int,
    compute: Callable[[list[Tokens]], Iterable[Any]],
    advance: Callable[[int], object],
    batch_size: int | None = None,
) -> Iterator[list[Any]]:
    """Yield the results of `compute` for the sequences, in their order, in one list per window.

    `compute` returns a result for each row of a batch; `advance` is called with the number of rows just completed.
    """
    for window in windows(sequences, batch_tokens):
        results: list[Any] = [None] * len(window)
        for indices in batches([len(sequence) for sequence in window], batch_tokens, batch_size):
            for index, result in zip(indices, by_halves(compute, [window[index] for index in indices]), strict=True):
                results[index] = result
            advance(len(indices))
        yield results


# On a terminal, the bar appears once the work has taken this many seconds.
PATIENCE = 2.0


def progress_bar(total: int | None, wanted: bool | None) -> AbstractContextManager[Callable[[int], object]]:
    """Return a context whose value is a function to call with the number of texts just completed.

    Args:
        total: the number of texts; None if it is unknown.
        wanted: True shows a bar at once, False shows none, None shows one on a terminal if the work takes long.
    """
    if wanted is not None:
        wanted = checks.boolean("show_progress_bar", wanted)
    if wanted is False or (wanted is None and not (sys.stderr is not None and sys.stderr.isatty())):
        return nullcontext(lambda count: None)
    return _shown_bar(total, 0.0 if wanted else PATIENCE)


@contextmanager
def _shown_bar(total: int | None, delay: float) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(total=total, unit=" texts", delay=delay) as bar:
        yield bar.update
