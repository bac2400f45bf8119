"""Texts longer than a model accepts: cut with a warning, rejected, or read in overlapping windows.

A long text is tokenized piece by piece, so that memory depends on the window and not on the text.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.tasks.texts import BATCH_TOKENS, Row, grouped, in_batches, too_long
from bertcore.tokenization.tokenizer import Tokenizer

TRUNCATIONS = (True, "warn", "error", "chunk")
STRATEGIES = ("longest_first", "only_first", "only_second")
PIECE = 1 << 16  # characters of a long text tokenized at once; more if a window needs more
OVERLAP = 4  # by default, windows share one token in this many


@dataclass(frozen=True)
class Text:
    """One input sequence of a model: a text or a pair of texts, and the part that may be cut."""

    first: str
    second: str | None = None
    strategy: str = "longest_first"

    def __len__(self) -> int:
        return len(self.first) + len(self.second or "")

    @property
    def parts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def windowed(self) -> int:
        """Index (0 or 1) of the part that is read in windows."""
        if self.second is None or self.strategy == "only_first":
            return 0
        return 1 if self.strategy == "only_second" or len(self.second) > len(self.first) else 0


@dataclass(frozen=True)
class Cutting:
    """The treatment of texts that are too long."""

    # "warn" cuts them and warns once, True cuts them, "error" rejects them, "chunk" reads all in windows
    truncation: bool | str = "warn"
    max_length: int | None = None  # number of tokens of a window, including special tokens; None for no limit
    stride: int | None = None  # number of tokens that neighbouring windows share; None for a quarter of a window
    most_shared: int | None = None  # upper limit of the default stride; None for no limit

    def __post_init__(self) -> None:
        if not (self.truncation is True or (isinstance(self.truncation, str) and self.truncation in TRUNCATIONS)):
            error = ValueError if isinstance(self.truncation, str | bool) else TypeError
            raise error(f"truncation is {self.truncation!r}, expected one of {', '.join(map(repr, TRUNCATIONS))}")
        for name, least in (("max_length", 1), ("stride", 0)):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, least)
        if self.stride is not None and not self.reads_all:
            raise ValueError(f"stride is {self.stride} and truncation {self.truncation!r}: windows are for 'chunk'")

    @property
    def reads_all(self) -> bool:
        """True if texts are read in windows."""
        return self.truncation == "chunk"


class Window:
    """One row of a model's input: the tokens of a text or of a part of it.

    Attributes:
        encoding: the tokenizers library's Encoding.
        part: 0 or 1, the text of a pair that is read in windows.
        text: that text, whole.
        shift: position in it of the first character of the encoded piece.
        shared: number of first tokens that are also in the previous window.
    """

    def __init__(self, encoding: Any, source: Text, shift: int):
        self.encoding, self.part, self.shift, self.shared = encoding, source.windowed, shift, 0
        self.text = source.parts[self.part]

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def ids(self) -> list[int]:
        """Token ids, special tokens included."""
        return self.encoding.ids

    @property
    def content(self) -> np.ndarray:
        """Columns of the tokens of the text that is read in windows."""
        special = self.encoding.special_tokens_mask
        sequences = self.encoding.sequence_ids
        rows = (i for i, mark in enumerate(special) if not mark and sequences[i] == self.part)
        return np.fromiter(rows, np.int64)

    @property
    def offsets(self) -> np.ndarray:
        """Start and end characters in the whole text, (tokens, 2); valid for the columns of `content`."""
        return np.array(self.encoding.offsets, np.int64).reshape(-1, 2) + self.shift


def windows_of(tokenizer: Tokenizer, texts: Sequence[Text], cutting: Cutting) -> list[Iterator[Window]]:
    """Return for each text an iterator over its windows, in the order of the text (a cut text is its first window).

    Raises:
        TypeError, ValueError: as the tokenizer does, if a text is not a string or not valid Unicode, or if the other
            text of a pair fills the window.
    """
    found: list[Iterator[Window]] = [iter(()) for _ in texts]
    at_once: dict[tuple, list[int]] = {}
    is_cut_from_the_left = tokenizer.truncation_side == "left" and not cutting.reads_all
    for number, text in enumerate(texts):
        is_cut = cutting.max_length is not None
        if is_cut and len(text.parts[text.windowed]) > PIECE and not is_cut_from_the_left:
            found[number] = _windows_of_pieces(tokenizer, text, cutting)
        else:
            options = _strategy(text, cutting) if is_cut else None, _stride(tokenizer, text, cutting)
            at_once.setdefault((len(text.parts), *options), []).append(number)
    for (_, strategy, stride), numbers in at_once.items():
        rows = _encoded(tokenizer, [texts[number].parts for number in numbers], strategy, cutting.max_length, stride)
        for number, encodings in zip(numbers, rows, strict=True):
            found[number] = iter(_in_order(encodings, texts[number], 0, stride))
    return found


def _strategy(text: Text, cutting: Cutting) -> str:
    if text.second is None:
        return "longest_first"
    return STRATEGIES[1 + text.windowed] if cutting.reads_all else text.strategy


def _stride(tokenizer: Tokenizer, text: Text, cutting: Cutting) -> int | None:
    """Return the number of tokens that neighbouring windows of a text share; None if texts are cut."""
    if not cutting.reads_all or cutting.max_length is None:
        return None
    free = cutting.max_length - tokenizer.num_special_tokens_to_add(text.second is not None)
    if text.second is not None:
        free -= len(tokenizer(text.parts[1 - text.windowed], add_special_tokens=False)["input_ids"])
    if cutting.stride is not None:
        if cutting.stride >= free:
            raise ValueError(f"stride is {cutting.stride}, expected less than the {max(0, free)} tokens of a window")
        return int(cutting.stride)
    if cutting.most_shared is not None:
        return max(0, min(cutting.most_shared, free // 2))
    return max(0, free // OVERLAP)


def _encoded(
    tokenizer: Tokenizer, inputs: Sequence[tuple[str, ...]], strategy: str | None, max_length: int | None,
    stride: int | None,
) -> list[list]:  # fmt: skip
    """Return the encodings of each input: its truncated tokens, then the overflowing ones."""
    columns = [list(column) for column in zip(*inputs, strict=True)]
    cuts = strategy is not None
    options: dict[str, Any] = {"truncation": strategy or False, "stride": stride or 0}
    encoded = tokenizer(*columns, max_length=max_length, return_overflowing_tokens=cuts, **options)
    rows: list[list] = [[] for _ in inputs]
    samples = encoded["overflow_to_sample_mapping"] if cuts else range(len(inputs))
    for sample, encoding in zip(samples, encoded.encodings, strict=True):
        rows[sample].append(encoding)
    return rows


def _in_order(encodings: list, text: Text, shift: int, stride: int | None) -> list[Window]:
    """Return the windows of a text that was tokenized at once; without a stride its truncated tokens come first."""
    windows = [Window(encoding, text, shift) for encoding in encodings]
    if stride is None or len(windows) < 2:
        return windows
    windows.sort(key=_beginning)  # truncation from the left returns the last piece first
    for window in windows[1:]:
        window.shared = stride
    return windows


def _beginning(window: Window) -> int:
    content = window.content
    return int(window.offsets[content[0], 0]) if content.size else 0


def _windows_of_pieces(tokenizer: Tokenizer, text: Text, cutting: Cutting) -> Iterator[Window]:
    """Yield the windows of a text too long to tokenize at once; a piece starts with the previous one's last window."""
    whole, part = text.parts[text.windowed], text.windowed
    strategy, stride = _strategy(text, cutting), _stride(tokenizer, text, cutting)
    start, size, last = 0, PIECE, None
    while True:
        piece = whole[start : _end_of_piece(whole, start, size)]
        parts = tuple(piece if number == part else other for number, other in enumerate(text.parts))
        (encodings,) = _encoded(tokenizer, [parts], strategy, cutting.max_length, stride)
        windows = _in_order(encodings, text, start, stride)
        if last is not None:
            windows[0].shared = int((last.offsets[last.content, 0] >= start).sum())
        if start + len(piece) == len(whole):
            yield from windows
            return
        if len(windows) == 1:  # it contains the whole piece
            size *= 2
            continue
        least, place = _beginning(windows[-2]), _beginning(windows[-1])
        space = whole.rfind(" ", least + 1, place + 1)  # before the word at `place`
        yield from windows[:-1]
        start, last = place if space < 0 else space, windows[-2]


def _end_of_piece(text: str, start: int, size: int) -> int:
    stop = start + size
    if stop >= len(text):
        return len(text)
    before = text[start : max(start, text.rfind(" ", start, stop))].rstrip()
    return start + (len(before) or size)


def first_windows(windows: Iterator[Window], cutting: Cutting, name: str) -> tuple[Iterator[Window], bool]:
    """Return the windows of a text that are read, and whether the text was cut.

    Raises ValueError with the `name` of a text that is too long for truncation "error".
    """
    if cutting.reads_all:
        return windows, False
    first, more = next(windows, None), next(windows, None)
    if more is not None and cutting.truncation == "error":
        raise too_long(name, f"{cutting.max_length} tokens")
    return iter(() if first is None else (first,)), more is not None


def owned(counts: Sequence[int], shared: Sequence[int]) -> list[slice]:
    """Assign each token of a text to one window: a shared token to the one in which it has more context.

    The first half of the shared tokens belongs to the earlier window.

    Args:
        counts: number of tokens of each window, special tokens excluded.
        shared: number of those tokens that are also in the previous window.

    Returns:
        For each window the slice of its own tokens; together they are all tokens of the text, once each.
    """
    starts = [(share + 1) // 2 for share in shared]
    after = [share // 2 for share in (*shared[1:], 0)]
    return [slice(start, count - left) for start, count, left in zip(starts, counts, after, strict=True)]


MERGES = ("mean", "max")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a call that reads texts."""

    cutting: Cutting  # treatment of texts that are too long
    backend: str  # the backend that computes
    prompt: str = ""  # text before each input
    merge: str = "mean"  # merge of the vectors of a text's windows
    # maximum number of tokens and texts computed at once
    batch_tokens: int = BATCH_TOKENS
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_tokens", self.batch_tokens)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        checks.choice("merge", self.merge, MERGES)


class MergedWindows:
    """Merge the vectors of a text's windows: their mean weighted by tokens ("mean"), or their maximum ("max").

    Memory holds one vector, however many windows a text has.
    """

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
        if self._windows == 2:  # the first vector was kept unweighted, so that a single window is unchanged bit for bit
            self._vector = self._vector.astype(np.float64) * self._tokens
        self._vector = share if self._vector is None else self._vector + share
        self._tokens += max(1, tokens)

    def take(self) -> np.ndarray:
        """Return the text's vector in its windows' dtype (a single window's bit for bit) and start the next text."""
        vector = self._vector
        if self._merge == "mean" and self._windows > 1:
            vector = (vector / self._tokens).astype(self._dtype)
        self._vector, self._tokens, self._windows = None, 0, 0
        return vector


def merged(windows: Iterable[tuple[np.ndarray, int]], merge: str) -> np.ndarray:
    """Return the vector of a text from (vector, tokens) of each of its windows."""
    whole = MergedWindows(merge)
    for vector, tokens in windows:
        whole.add(vector, tokens)
    return whole.take()


def merged_vectors(
    texts: Iterable[Text],
    tokenizer: Tokenizer,
    cutting: Cutting,
    whole: MergedWindows,
    compute: Callable[[list[Window]], Iterable[Any]],
    batch_tokens: int,
    batch_size: int | None = None,
) -> Iterator[list[Any]]:
    """Yield a vector for each text, in their order, in lists of those completed by the latest batches.

    Memory is bounded by `batch_tokens`, however long a text is. `compute` returns a vector for each window of a batch;
    `whole` merges those of a text.
    """
    marks: deque[tuple[int, bool]] = deque()  # (tokens, is the last of its text) for each window

    def windows() -> Iterator[Window]:
        for group in grouped(texts):
            for found in windows_of(tokenizer, group, cutting):
                for window, is_last in with_last(found):
                    marks.append((len(window), is_last))
                    yield window

    for vectors in in_batches(windows(), batch_tokens, compute, lambda count: None, batch_size):
        done = []
        for vector in vectors:
            tokens, is_last = marks.popleft()
            whole.add(vector, tokens)
            if is_last:
                done.append(whole.take())
        if done:
            yield done


def with_last(rows: Iterator[Row]) -> Iterator[tuple[Row, bool]]:
    """Yield each row with whether it is the last one."""
    row = next(rows, None)
    while row is not None:
        after = next(rows, None)
        yield row, after is None
        row = after
