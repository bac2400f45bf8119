"""Prepare the rows of an index: vectors in blocks, each with an id and, optionally, a text."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertcore.arguments import as_float32
from bertcore.tasks.search import check_table
from bertcore.tasks.texts import checked_text

ROWS = 4096  # written at once


def row_blocks(
    embeddings: Any, ids: Any, texts: Any, start: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, list[bytes]]]:
    """Yield rows, float32 (rows, dim), with as many ids and encoded texts."""
    for name, given in (("ids", ids), ("texts", texts)):
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | None):
            raise TypeError(f"{name} is {type(given).__name__}, expected one for each row")
    numbers = itertools.count(start) if ids is None else iter(ids)
    lines = None if texts is None else iter(texts)
    done = 0
    for rows in _rows(embeddings):
        some = list(itertools.islice(numbers, len(rows)))
        words = [] if lines is None else list(itertools.islice(lines, len(rows)))
        for name, found in (("ids", some), ("texts", words if lines is not None else some)):
            if len(found) != len(rows):
                raise ValueError(f"{name} has {done + len(found)} entries, expected one for each row")
        made = np.array([_id(done + at, each) for at, each in enumerate(some)], np.int64)
        yield rows, made, [checked_text(f"texts[{done + at}]", each).encode() for at, each in enumerate(words)]
        done += len(rows)
    for name, rest in (("ids", iter(()) if ids is None else numbers), ("texts", lines or iter(()))):
        if next(rest, None) is not None:
            raise ValueError(f"{name} has more than {done} entries, expected one for each row")


def _id(place: int, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"ids[{place}] is {value!r:.80}, expected an integer")
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"ids[{place}] is {value}, expected an integer of 64 bits")
    return int(value)


def _rows(embeddings: Any) -> Iterator[np.ndarray]:
    """Yield blocks of ROWS rows, float32, the last of fewer."""
    if hasattr(embeddings, "shape") and len(embeddings.shape) == 2:
        table = embeddings
        embeddings = (table[at : at + ROWS] for at in range(0, len(table), ROWS))
    elif isinstance(embeddings, str | bytes | Mapping) or not isinstance(embeddings, Iterable):
        raise TypeError(f"embeddings is {type(embeddings).__name__}, expected an array (rows, dim), or rows")
    waiting: list[np.ndarray] = []
    count = 0
    for place, some in enumerate(embeddings):
        if isinstance(some, int | float | np.number):
            raise ValueError(f"embeddings[{place}] is one number, expected a row (dim,) or rows (rows, dim)")
        rows = check_table(f"embeddings[{place}]", some)
        if not rows.shape[1] or (waiting and rows.shape[1] != waiting[0].shape[1]):
            expected = str(waiting[0].shape[1]) if waiting else "one or more"
            raise ValueError(f"embeddings[{place}] has {rows.shape[1]} numbers, expected {expected}")
        made = as_float32(f"embeddings[{place}]", rows)
        waiting.append(made)
        count += len(made)
        if count >= ROWS:
            joined, whole = np.concatenate(waiting), count - count % ROWS
            yield from (joined[at : at + ROWS] for at in range(0, whole, ROWS))
            waiting, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(waiting)
