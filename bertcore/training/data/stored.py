"""Examples in files read by memory mapping: written once, then read in any order and from any position."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertcore.checkpoint.files import naming, temporary_beside
from bertcore.system import replace

INDEX = "examples.json"
DTYPES = {"i": "int32", "f": "float32"}  # by the type codes of `array`
BUFFERED = 1 << 18  # values of a column that wait to be written


class StoredExamples:
    """A sequence of examples in a folder, made by `store_examples`; an example is a dict of arrays and numbers.

    An example is in memory only once it is read. The sequence may be pickled, and read after a fork. Skipping examples
    costs nothing, unlike in a stream that is tokenized again.

    Args:
        folder: written by `store_examples`.

    Attributes:
        facts: stored with the examples.

    Raises:
        FileNotFoundError: for a folder without examples.
        ValueError: for damaged files.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        try:
            index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            self.facts, self._count, columns = index["facts"], index["count"], index["columns"].items()
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{folder} has no {INDEX}: it holds no examples") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.folder / INDEX} is damaged: {error!r}") from error
        self._columns = {name: _Column(self.folder, name, known, self._count) for name, known in columns}

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredExamples, (self.folder,)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = range(self._count)[index]  # checks the range and resolves negative indices
        return {name: column[place] for name, column in self._columns.items()}


class Subset:
    """Some examples of a sequence, in the order of their `indices` in it."""

    def __init__(self, dataset: Any, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]


def store_examples(
    folder: str | os.PathLike[str], examples: Iterable[Mapping[str, Any]], facts: Mapping[str, Any] | None = None
) -> StoredExamples:
    """Write examples to a new folder, which appears once all are written. Memory use is bounded.

    Args:
        folder: a path that does not exist yet.
        examples: mappings of the same keys to integers, floats, or one-axis lists or arrays of them. They are kept in
            32 bits.
        facts: JSON values about them.

    Raises:
        FileExistsError: if the folder exists.
        TypeError, ValueError: naming the example whose keys or kinds differ from the first, or that is not a mapping.
        OSError: naming the folder, if it cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already, expected a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(folder) as beside, naming(folder, nameless_alone=True):
        beside.mkdir()
        count, columns = _write(beside, examples)
        known = {name: {"dtype": DTYPES[kind.code], "scalar": kind.is_scalar} for name, kind in columns.items()}
        index = {"count": count, "columns": known, "facts": dict(facts or {})}
        (beside / INDEX).write_text(json.dumps(index), encoding="utf-8")
        replace(beside, folder)
    return StoredExamples(folder)


def _write(folder: Path, examples: Iterable[Mapping[str, Any]]) -> tuple[int, dict[str, _Writer]]:
    columns: dict[str, _Writer] = {}
    count = 0
    with ExitStack() as stack:
        for count, example in enumerate(examples, 1):
            if count == 1:
                columns = {name: _Writer(folder, name, value, stack) for name, value in example.items()}
            if example.keys() != columns.keys():
                found, first = (", ".join(names) or "nothing" for names in (example, columns))
                raise ValueError(f"examples[{count - 1}] has {found}, examples[0] has {first}")
            for name, value in example.items():
                try:
                    columns[name].add(value)
                except (TypeError, OverflowError) as error:
                    raise TypeError(f"examples[{count - 1}][{name!r}] is {value!r:.60}: {error}") from error
        for column in columns.values():
            column.flush()
    return count, columns


class _Writer:
    """Writer of one column's files."""

    def __init__(self, folder: Path, name: str, first: object, stack: ExitStack):
        if not name.isidentifier():
            raise ValueError(f"examples[0] has a key {name!r}, expected a plain name")
        kind = np.asarray(first)
        self.is_scalar, self.code = kind.ndim == 0, "f" if kind.dtype.kind == "f" and kind.size else "i"
        self._values, self._ends, self._end = array(self.code), array("q"), 0
        self._files = [open_file(path, stack) for path in _paths(folder, name)]

    def add(self, value: Any) -> None:
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if self.is_scalar:
            self._values.append(value)
        else:
            self._values.extend(value)
            self._end += len(value)
            self._ends.append(self._end)
        if len(self._values) > BUFFERED:
            self.flush()

    def flush(self) -> None:
        for file, buffer in zip(self._files, (self._values, self._ends), strict=True):
            buffer.tofile(file)
            del buffer[:]


class _Column:
    """Reader of one column."""

    def __init__(self, folder: Path, name: str, known: Mapping[str, Any], count: int):
        values, ends = _paths(folder, name)
        self.is_scalar = known["scalar"]
        self._values = _mapped(values, known["dtype"])
        self._ends = None if self.is_scalar else _mapped(ends, "int64")
        lengths = count if self._ends is None else (int(self._ends[-1]) if count else 0)
        if len(self._values) != lengths or (self._ends is not None and len(self._ends) != count):
            raise ValueError(f"{values} has {len(self._values)} values, expected {lengths} for {count} examples")

    def __getitem__(self, index: int) -> float | np.ndarray:
        if self._ends is None:
            return self._values[index].item()
        start = int(self._ends[index - 1]) if index else 0
        return np.array(self._values[start : int(self._ends[index])])


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.values", folder / f"{name}.ends"


def open_file(path: Path, stack: ExitStack) -> IO[bytes]:
    return stack.enter_context(path.open("xb"))


def _mapped(path: Path, dtype: str) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    if not path.is_file() or path.stat().st_size % size:
        raise ValueError(f"{path} is missing, or its size is not a multiple of {size} bytes")
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r")
