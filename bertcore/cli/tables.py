"""Tables for people: words to the left, numbers to the right."""

from collections.abc import Sequence


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool]) -> str:
    """The rows under their titles, each column as wide as its widest cell; `right` tells which are numbers."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, right, strict=True)
        ).rstrip()
        for cells in (titles, *rows)
    )
