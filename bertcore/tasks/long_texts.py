"""Texts that are longer than a model takes: cut with a warning, refused, or read in overlapping windows.

A text of any length is tokenized piece by piece, so that memory follows the window and not the text.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.tasks.texts import grouped, in_batches, too_long

TRUNCATIONS = (True, "warn", "error", "chunk")
STRATEGIES = ("longest_first", "only_first", "only_second")
PIECE = 1 << 16  # characters that are tokenized at once, of a longer text; more where a window needs more
OVERLAP = 4  # windows share this part of their room, if no stride is given


@dataclass(frozen=True)
class Text:
    """What is given to a model as one sequence: a text, or a pair of texts, and which of the two may be cut."""

    first: str
    second: str | None = None
    strategy: str = "longest_first"

    def __len__(self) -> int:
        return len(self.first) + len(self.second or "")

    @property
    def parts(self) -> tuple[str, ...]:
        """The text, or both of them."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def windowed(self) -> int:
        """Which part is read in windows: 0 or 1."""
        if self.second is None or self.strategy == "only_first":
            return 0
        return 1 if self.strategy == "only_second" or len(self.second) > len(self.first) else 0


@dataclass(frozen=True)
class Cutting:
    """What happens to texts that are too long.

    Attributes:
        truncation: "warn" cuts them and warns once, True cuts them, "error" refuses them, "chunk" reads all of them in
            windows.
        max_length: the tokens of a window, special ones included; None where there is no limit.
        stride: how many tokens two neighbouring windows share; None for a quarter of what a window has room for.
        most_shared: the most that they share where no stride is given; None for any number.
    """

    truncation: Any = "warn"
    max_length: int | None = None
    stride: int | None = None
    most_shared: int | None = None

    def __post_init__(self) -> None:
        if not (self.truncation is True or (isinstance(self.truncation, str) and self.truncation in TRUNCATIONS)):
            raise ValueError(f"truncation is {self.truncation!r}, expected one of {', '.join(map(repr, TRUNCATIONS))}")
        for name, least in (("max_length", 1), ("stride", 0)):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, least)
        if self.stride is not None and not self.reads_all:
            raise ValueError(f"stride is {self.stride} and truncation {self.truncation!r}: windows are for 'chunk'")

    @property
    def reads_all(self) -> bool:
        """Whether texts are read in windows."""
        return self.truncation == "chunk"


class Window:
    """One row for a model: the tokens of a text, or of a part of it.

    Attributes:
        encoding: of the tokenizers library.
        shift: the character of the whole text at which the piece starts that the encoding is of.
        part: 0 or 1, the text of a pair that the window is of.
        shared: how many of its first tokens the window before has, too.
    """

    def __init__(self, encoding: Any, part: int = 0, shift: int = 0):
        self.encoding, self.part, self.shift, self.shared = encoding, part, shift, 0

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def ids(self) -> list[int]:
        """Token ids, special ones included."""
        return self.encoding.ids

    @property
    def content(self) -> np.ndarray:
        """The columns of the tokens of the text that is read in windows."""
        special = self.encoding.special_tokens_mask
        sequences = self.encoding.sequence_ids
        rows = (i for i, mark in enumerate(special) if not mark and sequences[i] == self.part)
        return np.fromiter(rows, np.int64)

    @property
    def offsets(self) -> np.ndarray:
        """(tokens, 2): the first and last + 1 character of the whole text, for the columns that are `content`."""
        return np.array(self.encoding.offsets, np.int64).reshape(-1, 2) + self.shift


def windows_of(tokenizer: Any, texts: Sequence[Text], cutting: Cutting) -> list[Iterator[Window]]:
    """For each text an iterator over its windows, in the order of the text (the first is what cutting leaves of it).

    Raises:
        TypeError, ValueError: as the tokenizer does, if a text is no string or no valid Unicode, or if a pair's other
            text leaves no room.
    """
    found: list[Iterator[Window]] = [iter(()) for _ in texts]
    at_once: dict[tuple, list[int]] = {}
    for number, text in enumerate(texts):
        if cutting.max_length is None:
            at_once.setdefault((len(text.parts), None, None), []).append(number)
        elif _is_long(text) and not _is_cut_from_the_left(tokenizer, cutting):
            found[number] = _windows_of_pieces(tokenizer, text, cutting)
        else:
            stride = _stride(tokenizer, text, cutting)
            at_once.setdefault((len(text.parts), _strategy(text, cutting), stride), []).append(number)
    for (_, strategy, stride), numbers in at_once.items():
        rows = _encoded(tokenizer, [texts[number].parts for number in numbers], strategy, cutting.max_length, stride)
        for number, encodings in zip(numbers, rows, strict=True):
            found[number] = iter(_in_order(encodings, texts[number].windowed, 0, stride))
    return found


def _is_long(text: Text) -> bool:
    return len(text.parts[text.windowed]) > PIECE


def _is_cut_from_the_left(tokenizer: Any, cutting: Cutting) -> bool:
    return tokenizer.truncation_side == "left" and not cutting.reads_all


def _strategy(text: Text, cutting: Cutting) -> str:
    if text.second is None or not cutting.reads_all:
        return text.strategy if text.second is not None else "longest_first"
    return STRATEGIES[1 + text.windowed]


def _stride(tokenizer: Any, text: Text, cutting: Cutting) -> int | None:
    """How many tokens neighbouring windows of a text share; None where it is cut."""
    if not cutting.reads_all or cutting.max_length is None:
        return None
    room = cutting.max_length - tokenizer.num_special_tokens_to_add(text.second is not None)
    if text.second is not None:
        room -= len(tokenizer(text.parts[1 - text.windowed], add_special_tokens=False)["input_ids"])
    if cutting.stride is not None:
        if cutting.stride >= room:
            raise ValueError(f"stride is {cutting.stride}, expected less than the {max(0, room)} tokens of a window")
        return int(cutting.stride)
    if cutting.most_shared is not None:
        return max(0, min(cutting.most_shared, room // 2))
    return max(0, room // OVERLAP)


def _encoded(
    tokenizer: Any, inputs: Sequence[tuple[str, ...]], strategy: str | None, max_length: int | None, stride: int | None
) -> list[list]:
    """For each input its encodings: what truncation leaves of it, and what it cuts off."""
    columns = [list(column) for column in zip(*inputs, strict=True)]
    cuts = strategy is not None
    options = {"truncation": strategy or False, "stride": stride or 0, "return_overflowing_tokens": cuts}
    encoded = tokenizer(*columns, max_length=max_length, **options)
    rows: list[list] = [[] for _ in inputs]
    samples = encoded["overflow_to_sample_mapping"] if cuts else range(len(inputs))
    for sample, encoding in zip(samples, encoded.encodings, strict=True):
        rows[sample].append(encoding)
    return rows


def _in_order(encodings: list, part: int, shift: int, stride: int | None) -> list[Window]:
    """The windows of a text that was tokenized at once; without a stride, what cutting leaves of it comes first."""
    windows = [Window(encoding, part, shift) for encoding in encodings]
    if stride is None or len(windows) < 2:
        return windows
    windows.sort(key=_beginning)  # what is cut from the left comes last piece first
    for window in windows[1:]:
        window.shared = stride
    return windows


def _beginning(window: Window) -> int:
    content = window.content
    return int(window.offsets[content[0], 0]) if content.size else 0


def _windows_of_pieces(tokenizer: Any, text: Text, cutting: Cutting) -> Iterator[Window]:
    """The windows of a text that is too long to be tokenized at once.

    The last window of a piece may be incomplete: the next piece starts where it does, at the space before its first
    word.
    """
    whole, part = text.parts[text.windowed], text.windowed
    strategy, stride = _strategy(text, cutting), _stride(tokenizer, text, cutting)
    start, size, last = 0, PIECE, None
    while True:
        piece = whole[start : _end_of_piece(whole, start, size)]
        parts = tuple(piece if number == part else other for number, other in enumerate(text.parts))
        (encodings,) = _encoded(tokenizer, [parts], strategy, cutting.max_length, stride)
        windows = _in_order(encodings, part, start, stride)
        if last is not None:
            windows[0].shared = int((last.offsets[last.content, 0] >= start).sum())
        if start + len(piece) == len(whole):
            yield from windows
            return
        if len(windows) == 1:  # it holds all of the piece
            size *= 2
            continue
        next_start = _word_start(whole, _beginning(windows[-2]), _beginning(windows[-1]))
        yield from windows[:-1]
        start, last = next_start, windows[-2]


def _end_of_piece(text: str, start: int, size: int) -> int:
    stop = start + size
    if stop >= len(text):
        return len(text)
    before = text[start : max(start, text.rfind(" ", start, stop))].rstrip()
    return start + (len(before) or size)


def _word_start(text: str, least: int, place: int) -> int:
    """The space before the word at `place`; `place` itself if there is none after `least`."""
    space = text.rfind(" ", least + 1, place + 1)
    return place if space < 0 else space


def first_windows(windows: Iterator[Window], cutting: Cutting, name: str) -> tuple[Iterator[Window], bool]:
    """The windows of a text that are read, and whether the text was cut.

    Raises ValueError, with the `name` of the text, for one that is too long where that is an error.
    """
    if cutting.reads_all:
        return windows, False
    first, more = next(windows, None), next(windows, None)
    if more is not None and cutting.truncation == "error":
        raise too_long(name, cutting.max_length)
    return iter(() if first is None else (first,)), more is not None


def owned(counts: Sequence[int], shared: Sequence[int]) -> list[slice]:
    """The tokens of each window that count, so that each is read once: a token that two windows share where it has more
    context, which is in the first window for the first half of what they share.

    Args:
        counts: how many tokens each window has, special ones not counted.
        shared: how many of them the window before has, too.

    Returns:
        For each window which of its tokens count; together they are all tokens of the text, once each.
    """
    starts = [(share + 1) // 2 for share in shared]
    after = [share // 2 for share in (*shared[1:], 0)]
    return [slice(start, count - left) for start, count, left in zip(starts, counts, after, strict=True)]


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
