"""Records of text files, JSON lines and CSV, read one after another: no file is ever whole in memory."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

LONGEST_LINE = 1 << 24  # bytes
KEPT_PROBLEMS = 20
STDIN = "-"

Record = dict[str, Any]


class MalformedRecord(ValueError):
    """A line that cannot be read; the message names file and line."""


class Records:
    """The records of files, in their order; every loop over it reads them again.

    A file's ending tells what it holds; .gz may follow each:

        .txt, .text, .md, or none    a record {"text": line} for each line; an empty line is a record, too: it ends
                                     a document
        .jsonl, .json                an object in each line
        .csv, .tsv                   a row, by the names in the first line

    Args:
        paths: files; folders, of which all files of a known ending are read in the order of their names; and "-" for
            standard input, lines of text that can be read once.
        on_malformed: "error", or "skip" for leaving out what cannot be read.

    Attributes:
        problems: the first 20 that were left out, as "file:line: why".
        malformed: how many records were left out.

    Raises:
        FileNotFoundError: for a path that is not there.
        ValueError: for another ending, a folder with nothing to read, or an unknown `on_malformed`.
        MalformedRecord: in a loop, for what cannot be read: not UTF-8, no JSON object, a line of more than 16 million
            bytes, a row of another length than the first, damaged compression.
    """

    def __init__(self, paths: str | os.PathLike | Sequence[str | os.PathLike], *, on_malformed: str = "error"):
        if on_malformed not in ("error", "skip"):
            raise ValueError(f"on_malformed is {on_malformed!r}, expected 'error' or 'skip'")
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self.files = [file for path in given for file in _files(path)]
        if not self.files:
            raise ValueError("paths is empty, expected files or folders")
        self.on_malformed, self.malformed, self.problems = on_malformed, 0, []

    def __iter__(self) -> Iterator[Record]:
        self.malformed, self.problems = 0, []
        for file in self.files:
            with _opened(file) as stream:
                for record in _PARSERS[_ending(file)](_lines(stream)):
                    if isinstance(record, _Problem):
                        self._note(f"{file}:{record.line}: {record.why}")
                    else:
                        yield record

    def _note(self, problem: str) -> None:
        if self.on_malformed == "error":
            raise MalformedRecord(problem)
        self.malformed += 1
        if len(self.problems) < KEPT_PROBLEMS:
            self.problems.append(problem)


class _Problem(NamedTuple):
    line: int
    why: str


Lines = Iterator[tuple[int, str] | _Problem]


def _lines(stream: IO[bytes]) -> Lines:
    """(number, line without its end) of each line, or what is wrong with it."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(LONGEST_LINE + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield _Problem(number, f"damaged compression: {error}")
            return
        if not raw:
            return
        if len(raw) > LONGEST_LINE:
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(LONGEST_LINE)
            yield _Problem(number, f"a line of more than {LONGEST_LINE} bytes")
            continue
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield _Problem(number, f"not UTF-8: {error.reason} at byte {error.start}")


def _text(lines: Lines) -> Iterator[Record | _Problem]:
    for item in lines:
        yield item if isinstance(item, _Problem) else {"text": item[1]}


def _json(lines: Lines) -> Iterator[Record | _Problem]:
    for item in lines:
        if isinstance(item, _Problem):
            yield item
        elif item[1].strip():
            yield _json_object(*item)


def _json_object(number: int, line: str) -> Record | _Problem:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _Problem(number, f"no JSON: {error}")
    return value if isinstance(value, dict) else _Problem(number, f"a JSON {type(value).__name__}, expected an object")


def _table(delimiter: str) -> Callable[[Lines], Iterator[Record | _Problem]]:
    def parse(lines: Lines) -> Iterator[Record | _Problem]:
        problems: list[_Problem] = []

        def plain() -> Iterator[str]:
            for item in lines:
                if isinstance(item, _Problem):
                    problems.append(item)
                else:
                    yield item[1] + "\n"

        rows = csv.reader(plain(), delimiter=delimiter, strict=True)
        names: list[str] | None = None
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                row, problems = [], [*problems, _Problem(rows.line_num, str(error))]
            yield from problems
            problems.clear()
            if row is None:
                return
            if names is None:
                names = row
                if len(set(names)) < len(names):
                    yield _Problem(1, f"two columns of one name: {', '.join(names)}")
                    return
            elif row and len(row) != len(names):
                yield _Problem(rows.line_num, f"{len(row)} fields, expected {len(names)}: {', '.join(names)}")
            elif row:
                yield dict(zip(names, row, strict=True))

    return parse


_PARSERS: dict[str, Callable[[Lines], Iterator[Record | _Problem]]] = {
    "": _text,
    ".txt": _text,
    ".text": _text,
    ".md": _text,
    ".jsonl": _json,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
}
KNOWN = tuple(filter(None, _PARSERS))


def _ending(file: str | Path) -> str:
    return "" if file == STDIN else Path(str(file).removesuffix(".gz")).suffix.lower()


def _opened(file: str | Path) -> Any:
    if file == STDIN:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(file, "rb") if str(file).endswith(".gz") else open(file, "rb")


def _files(path: str | os.PathLike) -> list[str | Path]:
    """What a path stands for: itself, or all files of a folder, in the order of their names."""
    if path == STDIN:
        return [STDIN]
    path = Path(path)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and _ending(file) in KNOWN)
        if not found:
            raise ValueError(f"{path} holds no file to read, known endings are {', '.join(KNOWN)}")
        return found
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    if _ending(path) not in _PARSERS:
        raise ValueError(f"{path} ends with {_ending(path)}, known are {', '.join(KNOWN)}, and .gz after each")
    return [path]
