"""Results for people (an aligned table) and for programs (a CSV that grows with every run)."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A column of a table: the value under `key` of each row, empty for None."""

    key: str
    title: str
    form: str = ""  # as in format(value, form)
    scale: float | None = None  # a factor, e.g. 1e3 to show seconds as milliseconds

    def text(self, row: Mapping[str, Any]) -> str:
        value = row.get(self.key)
        if value is None:
            return ""
        return format(value if self.scale is None else value * self.scale, self.form)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return the rows under their titles; numbers (columns with a form) to the right, other values to the left."""
    cells = [[column.title for column in columns], *([column.text(row) for column in columns] for row in rows)]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    return "\n".join(_line(texts, widths, columns) for texts in cells)


def _line(texts: Iterable[str], widths: Iterable[int], columns: Iterable[Column]) -> str:
    aligned = (
        text.rjust(width) if column.form else text.ljust(width)
        for text, width, column in zip(texts, widths, columns, strict=True)
    )
    return "  ".join(aligned).rstrip()


def append_csv(path: Path, rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> None:
    """Add the rows, each with the machine's columns after its own, to the CSV at `path`, which is made if absent.

    Raises ValueError, without writing, if the file has other columns.
    """
    if not rows:
        return
    columns = [*rows[0], *machine]
    is_new = check_csv(path, columns)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        writer.writerows({**row, **machine} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV by the names of their columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_csv(path: Path, expected: list[str]) -> bool:
    """Return whether the CSV at `path` is still empty; creates it to check that it can be written.

    Raises OSError if it cannot, ValueError if it has other columns than expected.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        found = next(csv.reader(file), None)
    if found is None:
        return True
    if found != expected:
        raise ValueError(f"{path} has the columns {', '.join(found)}; these results have {', '.join(expected)}")
    return False
