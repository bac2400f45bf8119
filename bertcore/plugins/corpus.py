"""Split a corpus of files into parts that are read separately, in bounded memory, for `bertcore embed --ray`."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from bertcore.tasks.texts import bounded_lines, read_lines
from bertcore.training.data.files import MalformedRecord, Record, ending_of, json_object, text_of

TEXT, JSON, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".json"), (".parquet",)
KNOWN = (*TEXT, *JSON, *PARQUET)
READ_AT_ONCE = 1024  # rows of a Parquet file
MOST_ROWS = 1 << 31  # of a group of rows


class RowRange(NamedTuple):
    """Consecutive rows of a file (lines, or rows of a table).

    `first` and `offset` are the numbers of rows and of uncompressed bytes before them; the offset is 0 for Parquet.
    """

    file: Path
    first: int
    offset: int
    rows: int


def parts_of(file: Path, rows: int, column: str) -> Iterator[RowRange]:
    """Yield the parts of a file, with `rows` rows each except the last; an empty file is one empty part.

    Lines are counted but not decoded; a Parquet file states its rows. Raises ValueError for a Parquet file without the
    column, and for damaged compression.
    """
    if ending_of(file) in PARQUET:
        yield from _parts_of_table(file, rows, column)
        return
    with _opened(file) as stream:
        first = 0
        while True:
            offset = stream.tell()
            count = sum(1 for _ in islice(bounded_lines(stream, str(file), first + 1), rows))
            if count or not first:
                yield RowRange(file, first, offset, count)
            if count < rows:
                return
            first += count


def texts_of(part: RowRange, column: str) -> Iterator[str]:
    """Yield the texts of a part: its lines, or the values of `column`; blank lines of a JSON lines file are skipped.

    Raises ValueError for wrong bytes or damaged compression, MalformedRecord for a value of `column` that is not a
    text.
    """
    if ending_of(part.file) in TEXT:
        yield from _lines(part)
        return
    records = _rows_of_table(part, column) if ending_of(part.file) in PARQUET else _objects(part)
    yield from (text_of(record, number, column) for number, record in enumerate(records))


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Return a context with the bytes of a file of lines. Raises ValueError if its compression is damaged."""
    try:
        with cast(BinaryIO, gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"the compression of {file} is damaged: {error}") from error


def _lines(part: RowRange) -> Iterator[str]:
    with _opened(part.file) as stream:
        stream.seek(part.offset)
        yield from read_lines(stream, str(part.file), part.first + 1, part.rows)


def _objects(part: RowRange) -> Iterator[Any]:
    for number, line in enumerate(_lines(part), part.first + 1):
        if not line.strip():
            continue
        try:
            values = json_object(line)
        except ValueError as error:
            raise MalformedRecord(f"{part.file}:{number}: {error}") from error
        yield Record(values, str(part.file), number)


@contextmanager
def _table(file: Path) -> Iterator[Any]:
    """Return a context with a Parquet file. Raises ValueError if it is damaged."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(f'{file} needs pyarrow: pip install "bertcore[ray]"') from error
    try:
        with ParquetFile(file) as table:
            yield table
    except (ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        problem = " ".join(f"{error}".split()).encode("unicode_escape").decode()
        raise ValueError(f"{file} is damaged or not Parquet: {problem:.300}") from error


def _parts_of_table(file: Path, rows: int, column: str) -> Iterator[RowRange]:
    with _table(file) as table:
        names, count = table.schema_arrow.names, table.metadata.num_rows
        sizes = _group_sizes(table)
    if count != sum(sizes) or not all(0 <= size < MOST_ROWS for size in sizes):
        raise ValueError(f"{file} is damaged: it states {count} rows, and {sum(sizes)} in its row groups")
    if column not in names:
        raise ValueError(f"--column is {column!r}, expected a column of {file}: {', '.join(names)}")
    for first in range(0, max(count, 1), rows):
        yield RowRange(file, first, 0, min(rows, count - first))


def _rows_of_table(part: RowRange, column: str) -> Iterator[Any]:
    with _table(part.file) as table:
        group, skipped = 0, part.first
        sizes = _group_sizes(table)
        while group < len(sizes) and skipped >= sizes[group]:
            skipped -= sizes[group]
            group += 1
        batches = table.iter_batches(READ_AT_ONCE, range(group, len(sizes)), columns=[column])
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        number = part.first
        for number, value in enumerate(islice(values, skipped, skipped + part.rows), part.first + 1):
            yield Record({column: value}, str(part.file), number)
    if number < part.first + part.rows:
        raise ValueError(f"{part.file} is damaged: it states at least {part.first + part.rows} rows, and has {number}")


def _group_sizes(table: Any) -> list[int]:
    return [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
