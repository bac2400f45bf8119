"""Tables for people: words to the left, numbers to the right."""

from collections.abc import Sequence


def printable(text: str) -> str:
    """The text with control characters as Python writes them: those of a file from elsewhere may command a terminal."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1].replace("\\\\", "\\") for character in text
    )


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool]) -> str:
    """The rows under their titles, each column as wide as its widest cell; `right` tells which are numbers."""
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, right, strict=True)
        ).rstrip()
        for cells in (titles, *rows)
    )
