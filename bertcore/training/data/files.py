"""Records of text files, JSON lines and CSV as a stream, and the documents made of them."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import os
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertcore.checkpoint.files import MOST_BYTES

LONGEST_LINE = 1 << 24  # bytes
KEPT_PROBLEMS = 20
STDIN = "-"
Rows = Iterable[Mapping[str, Any]]
NewExamples = Iterator[dict[str, Any]]
_DAMAGED = EOFError, gzip.BadGzipFile, zlib.error


class MalformedRecord(ValueError):
    """A line that cannot be read, or used; the message names file and line."""


class Record(dict[str, Any]):
    """A record of a file: its values by name, and its position.

    Attributes:
        file, line: where the record begins; lines count from 1.
        is_line: whether it is a line of plain text rather than a whole text.
    """

    __slots__ = ("file", "is_line", "line")

    def __init__(self, values: Mapping[str, Any], file: str, line: int, is_line: bool = False):
        super().__init__(values)
        self.file, self.line, self.is_line = file, line, is_line

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (dict(self), self.file, self.line, self.is_line)


class Records:
    """The records of files, in their order; every loop over it reads them again, line by line.

    The file ending gives the format; .gz may follow each:

    - .txt, .text, .md, or none: a record {"text": line} for each line; an empty line is a record, too: it ends a
      document.
    - .jsonl, .json: a record for the object in each line; or SQuAD's own nested file, which is read whole
      and may have at most 256 MB, uncompressed.
    - .csv, .tsv: a record for each row, with the names in the first line; a quoted field may have several lines, and a
      row at most 16 million characters.

    Args:
        paths: files; folders, whose files of a known ending are read in the order of their names; and "-" for standard
            input, lines of text that can be read once.
        on_malformed: "error", or "skip" to leave out records that cannot be read.
        raw: read lines of text, whatever the ending.

    Attributes:
        problems: the first 20 records left out, as "file:line: why".
        malformed: the number of records left out.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: for another ending, a folder without readable files, or an unknown `on_malformed`.
        MalformedRecord: in a loop, for anything but UTF-8, a line that is not a JSON object or has more than 16 million
            bytes, a row whose length differs from the first's, damaged compression.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        on_malformed: str = "error",
        raw: bool = False,
    ):
        if on_malformed not in ("error", "skip"):
            raise ValueError(f"on_malformed is {on_malformed!r}, expected 'error' or 'skip'")
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        if not isinstance(given, Iterable):
            raise TypeError(f"paths is {type(paths).__name__}, expected a path or a list of paths")
        self.files = [file for path in given for file in ([STDIN] if path == STDIN else files_of(path, _PARSERS))]
        if not self.files:
            raise ValueError("paths is empty, expected files or folders")
        self.on_malformed, self.malformed, self.problems = on_malformed, 0, []
        self._raw = raw

    def __iter__(self) -> Iterator[Record]:
        self.malformed, self.problems = 0, []
        for file in self.files:
            with _opened(file) as stream:
                parse = _text if self._raw else _PARSERS[ending_of(file)]
                is_squad = parse is _json and _is_squad(stream)
                for found in _squad(stream) if is_squad else parse(_lines(stream)):
                    if isinstance(found, _Problem):
                        self._note(f"{file}:{found.line}: {found.why}")
                    else:
                        yield Record(found.values, str(file), found.line, is_line=parse is _text)

    def _note(self, problem: str) -> None:
        if self.on_malformed == "error":
            raise MalformedRecord(problem)
        self.malformed += 1
        if len(self.problems) < KEPT_PROBLEMS:
            self.problems.append(problem)


def wrong_record(record: object, number: int, problem: str) -> MalformedRecord:
    """Return the error for a record that cannot be used: its position, the problem, and its contents."""
    where = f"{record.file}:{record.line}:" if isinstance(record, Record) else f"records[{number}]"
    held = f"it has {', '.join(map(repr, record)) or 'nothing'}" if isinstance(record, Mapping) else f"it is {record!r}"
    return MalformedRecord(f"{where} {problem:.400}; {held:.200}")


def without_column(record: object, number: int, column: str, problem: str) -> MalformedRecord:
    """Return the error for a record without a column; in a table, whose records all lack it, it names line 1."""
    if not isinstance(record, Record) or column in record or ending_of(record.file) not in TABLES:
        return wrong_record(record, number, problem)
    names = f"{', '.join(map(repr, record)):.200}{_other_separator(record)}"
    return MalformedRecord(f"{record.file}:1: has no column {column!r} (see --text, --label, --column); it has {names}")


def text_of(record: object, number: int, column: str, *, may_be_empty: bool = True) -> str:
    """Return a column's text. Raises MalformedRecord if there is none."""
    text = record.get(column) if isinstance(record, Mapping) else None
    if not isinstance(text, str) or not (may_be_empty or text.strip()):
        raise without_column(record, number, column, f"has no text named {column!r}")
    return text


class _Problem(NamedTuple):
    line: int
    why: str


class _Found(NamedTuple):
    line: int
    values: Mapping[str, Any]


Lines = Iterator[tuple[int, str] | _Problem]
Parsed = Iterator[_Found | _Problem]


def _lines(stream: IO[bytes]) -> Lines:
    """Yield (number, line without its line feed) for each line, or its problem."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(LONGEST_LINE + 1)
        except _DAMAGED as error:
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
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            yield _Problem(number, f"not UTF-8: {error.reason} at byte {error.start}")


def _text(lines: Lines) -> Parsed:
    for item in lines:
        yield item if isinstance(item, _Problem) else _Found(item[0], {"text": item[1].removesuffix("\r")})


def _json(lines: Lines) -> Parsed:
    for item in lines:
        if isinstance(item, _Problem):
            yield item
        elif item[1].strip():
            try:
                yield _Found(item[0], json_object(item[1]))
            except ValueError as error:
                yield _Problem(item[0], str(error))


def json_object(line: str) -> dict[str, Any]:
    """Return the object in a line of JSON. Raises ValueError if it is not a JSON object or not valid Unicode."""
    try:
        value = json.loads(line)
        if "\\ud" in line.lower():  # an escaped half of a surrogate pair is not valid Unicode
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON, expected an object in each line: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, expected an object in each line")
    return value


_SQUAD = re.compile(
    rb"(\xef\xbb\xbf)?\s*{\s*(\"version\"\s*:\s*\"[^\"]*\"\s*,\s*)?\"data\"\s*:\s*\[\s*{\s*\"(title|paragraphs)\""
)


def _is_squad(stream: Any) -> bool:
    """Return whether a file begins as SQuAD's own do: one JSON object of articles, not one object per line."""
    try:
        return _SQUAD.match(stream.peek(4096)) is not None
    except _DAMAGED:  # reading its lines reports that
        return False


def _squad(stream: IO[bytes]) -> Parsed:
    """Yield the questions of SQuAD's own file, in the form of the data set on the Hugging Face hub."""
    try:
        if len(content := stream.read(MOST_BYTES + 1)) > MOST_BYTES:
            raise ValueError(f"a file of more than {MOST_BYTES} bytes, which would be read whole")
        file = json_object(content.decode("utf-8-sig"))
    except (*_DAMAGED, ValueError) as error:
        yield _Problem(1, str(error))
    else:
        yield from _questions(file, "", ("data", "paragraphs", "qas"), {})


def _questions(value: Any, place: str, levels: tuple[str, ...], above: Mapping[str, Any]) -> Parsed:
    """Yield the questions of a part of SQuAD's file, or its problem; `above` has the title and the context."""
    try:
        if levels:
            parts, made = _member(value, levels[0], list, place), {"title": value.get("title")}
            if levels[0] == "qas":
                made = {"context": _member(value, "context", str, place)}
        else:
            answers = list(enumerate(_member(value, "answers", list, place)))
            columns = {
                key: [_member(answer, key, kind, f"{place}.answers[{index}]") for index, answer in answers]
                for key, kind in (("text", str), ("answer_start", int))
            }
            made = {"id": value.get("id"), "question": _member(value, "question", str, place), "answers": columns}
    except ValueError as error:
        yield _Problem(1, f"not in SQuAD's form: {error}")
        return
    if not levels:
        yield _Found(1, {**above, **made})
        return
    for index, part in enumerate(parts):
        name = f"{levels[0]}[{index}]"
        yield from _questions(part, f"{place}.{name}" if place else name, levels[1:], {**above, **made})


def _member(value: object, key: str, kind: type, place: str) -> Any:
    """Return a member of an object; ValueError with its place if it is missing or of another kind."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        what = {list: "list", str: "text", int: "integer"}[kind]
        raise ValueError(f"{place or 'the file'} has no {what} named {key!r}")
    return found


def _rows(lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]] | _Problem]:
    """Yield (number of its first line, fields) of each row of a table, or its problem."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # process-wide; the default is 131,072
    taken: list[tuple[int, str] | _Problem] = []  # the lines of one row
    again: deque[tuple[int, str] | _Problem] = deque()  # lines of a failed row after its first

    def plain() -> Iterator[str]:
        size = 0
        while (item := again.popleft() if again else next(lines, None)) is not None:
            size = len(item[1]) + (size if taken else 0)
            taken.append(item)
            if isinstance(taken[0], _Problem):
                raise csv.Error(item[1])
            if size > LONGEST_LINE:
                raise csv.Error(f"a row of more than {LONGEST_LINE} characters: is a quote not closed?")
            yield "\n" if isinstance(item, _Problem) else item[1] + "\n"

    while True:
        rows = csv.reader(plain(), delimiter=delimiter, strict=True)
        try:
            for row in rows:
                broken = next((item for item in taken if isinstance(item, _Problem)), None)  # in a field of many lines
                yield _Problem(taken[0][0], f"line {broken.line}: {broken.why}") if broken else (taken[0][0], row)
                taken.clear()
            return
        except csv.Error as error:
            yield _Problem(taken[0][0], str(error))
            again.extendleft(reversed(taken[1:]))  # an unclosed quote costs only its own line
            taken.clear()


def _table(lines: Lines, delimiter: str) -> Parsed:
    rows = _rows(lines, delimiter)
    head = next(rows, None)
    if head is None:
        return
    if isinstance(head, _Problem):
        yield head
        return
    names = head[1]
    if len(set(names)) < len(names):
        yield _Problem(1, f"two columns have the same name: {', '.join(names)}")
        return
    for item in rows:
        if isinstance(item, _Problem):
            yield item
        elif item[1] and len(item[1]) != len(names):
            why = f"{len(item[1])} fields, expected {len(names)}: {', '.join(names)}{_other_separator(names)}"
            yield _Problem(item[0], why)
        elif item[1]:
            yield _Found(item[0], dict(zip(names, item[1], strict=True)))


def _other_separator(names: Collection[str]) -> str:
    """Return a question about a table's separator if its only column seems to be several."""
    found = next((separator for separator in ";\t|," if len(names) == 1 and separator in next(iter(names))), None)
    return f"; is its separator {found!r}?" if found else ""


_PARSERS: dict[str, Callable[[Lines], Parsed]] = dict.fromkeys(("", ".txt", ".text", ".md"), _text)
_PARSERS |= dict.fromkeys((".jsonl", ".json"), _json)
_PARSERS |= {".csv": partial(_table, delimiter=","), ".tsv": partial(_table, delimiter="\t")}
TABLES = (".csv", ".tsv")


def ending_of(file: str | Path) -> str:
    """Return the ending of a file's name, in lower case and without .gz; "" for standard input."""
    return "" if file == STDIN else Path(str(file).removesuffix(".gz")).suffix.lower()


def _opened(file: str | Path) -> Any:
    if file == STDIN:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(file, "rb") if str(file).endswith(".gz") else open(file, "rb")


def files_of(path: str | os.PathLike[str], endings: Collection[str]) -> list[Path]:
    """Return the files that a path stands for: itself, or all files of a folder with these endings, sorted by name.

    Raises FileNotFoundError for a missing path, ValueError for another ending and a folder with nothing to read.
    """
    if not os.fspath(path):
        raise ValueError("a path is empty, expected a file or a folder")
    path, known = Path(path), [ending for ending in endings if ending]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and ending_of(file) in known)
        if not found:
            raise ValueError(f"{path} has no readable file, expected endings {', '.join(known)}")
        return found
    if not path.is_file():
        found = "is a pipe or a device, expected a file, which can be read again" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {found}")
    if ending_of(path) not in endings:
        raise ValueError(f"{path} ends with {ending_of(path)}, expected {', '.join(known)}, or .gz after these")
    return [path]


LONGEST_DOCUMENT = 1 << 20  # characters


class Documents:
    """The documents of records; every loop over it reads them again.

    An empty line of a text file ends a document, and so does the end of the file; any other record is a document: its
    text column. A document of more than a million characters comes in parts, so that a file without an empty line is
    never whole in memory.

    Args:
        records: `Records`, a Hugging Face dataset, or any iterable of mappings.
        column: the name of the text in records that are not lines.
        language: split documents into sentences by the rules of this language ("en", "de", ...; needs sentencex); None
            leaves their lines as they are.

    A document is a list of strings without surrounding white space; empty strings and empty documents are left out.

    Raises:
        TypeError: unless records is an iterable.
        MalformedRecord (a ValueError): in a loop, for a record without a text in the column.
        ImportError: if sentences are asked for and sentencex is not installed.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], *, column: str = "text", language: str | None = None):
        if not isinstance(records, Iterable) or isinstance(records, str | bytes | Mapping):
            raise TypeError(f"records is {type(records).__name__}, expected an iterable of records: Records(paths)")
        self.records, self.column, self.language = records, column, language
        if language is not None:
            split_sentences("", language)

    def __iter__(self) -> Iterator[list[str]]:
        for lines in self._lines():
            pieces = lines if self.language is None else split_sentences("\n".join(lines), self.language)
            document = [piece.strip() for piece in pieces]
            if document := [piece for piece in document if piece]:
                yield document

    def _lines(self) -> Iterator[list[str]]:
        """Yield the lines of each document."""
        waiting: list[str] = []
        length, file = 0, None
        for number, record in enumerate(self.records):
            is_line = isinstance(record, Record) and record.is_line
            text = record["text"] if is_line else text_of(record, number, self.column)
            goes_on = is_line and text.strip() and record.file == file and length + len(text) <= LONGEST_DOCUMENT
            if waiting and not goes_on:
                yield waiting
                waiting, length = [], 0
            if is_line:
                waiting.append(text)
                length, file = length + len(text), record.file
            else:
                yield text.splitlines()
        if waiting:
            yield waiting


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of a text with the white space between them: joined, they give the text.

    sentencex (https://github.com/wikimedia/sentencex) splits by the rules of the language, a code of two or three
    letters; it has rules for some 30 languages, and uses the nearest for others.
    """
    try:
        sentencex = importlib.import_module("sentencex")
    except ImportError as error:
        raise ImportError("sentences need sentencex: pip install 'bertcore[training]'") from error
    if not isinstance(language, str) or not language:
        raise TypeError(f"language is {language!r}, expected a code such as 'en'")
    return list(sentencex.segment(language, text))
