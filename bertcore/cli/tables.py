"""Tables for people: words to the left, numbers to the right."""

from collections.abc import Sequence
from itertools import repeat


def printable(text: str) -> str:
    """The text with control characters as Python writes them: those of a file from elsewhere may command a terminal."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1].replace("\\\\", "\\") for character in text
    )


def aligned(rows: Sequence[Sequence[str]], titles: Sequence[str] = (), *, right: Sequence[bool] = ()) -> str:
    """The rows, under their titles if there are any, each column as wide as its widest cell; `right` tells which are
    numbers."""
    cells = [*([titles] if titles else []), *(list(map(printable, row)) for row in rows)]
    sides = [str.rjust if is_number else str.ljust for is_number in right] or repeat(str.ljust)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ([side(cell, width) for side, cell, width in zip(sides, row, widths, strict=False)] for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)
