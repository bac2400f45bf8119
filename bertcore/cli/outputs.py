"""The outputs of commands: files that appear whole or not at all, arrays, JSON lines, and tables for people."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from bertcore.arguments import printable
from bertcore.cli.options import UNWRITABLE, Command, CommandError, File
from bertcore.system import replace

if TYPE_CHECKING:
    import numpy as np


class Output(Command):
    """A command that writes its answers.

    Attributes:
        output: the file to write, or - for standard output.
        json: write JSON, a line for each answer.
    """

    title = "Output"
    spellings = ("-o output",)

    output: File = "-"
    json: bool = False


def check_matplotlib(name: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(f"{name} needs matplotlib, which is not installed: pip install matplotlib")


def check_picture(option: str, file: str) -> None:
    """Check that a file is named *.png or *.svg; matplotlib need not be installed."""
    if Path(file).suffix.lower() not in (".png", ".svg"):
        raise CommandError(f"{option} is {file}, expected a file named *.png or *.svg")


def write_picture(file: str, figure: Any) -> None:
    from bertcore.drawing import save_figure

    with output_stream(file, seekable=True) as stream:
        save_figure(figure, stream, Path(file).suffix)


@contextmanager
def output_stream(path: str, *, seekable: bool) -> Iterator[BinaryIO]:
    """Return a block with a stream to the file `path`, or to stdout for "-".

    A file takes the place of `path` in one step when the block ends well; otherwise nothing is left. Pipes and devices
    are written as they are, through a temporary file if `seekable`.
    """
    if not path:
        raise CommandError("--output is empty, expected the name of a file, or - for stdout")
    if path == "-" and sys.stdout is None:
        raise CommandError("stdout is closed: there is nowhere to write to")
    target = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    with _naming("stdout" if path == "-" else path), ExitStack() as stack:
        if path == "-":
            yield stack.enter_context(_spooled(sys.stdout.buffer, seekable))
        elif target.is_file() or not target.exists():
            yield stack.enter_context(_replaced(target))
        else:
            yield stack.enter_context(_spooled(stack.enter_context(_opened(target, target, "wb")), seekable))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Return a block in which write errors, which carry no file name, name what cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        raise CommandError(f"{name} cannot be written: {error.strerror}") from error


@contextmanager
def _replaced(target: Path) -> Iterator[BinaryIO]:
    from bertcore.checkpoint.files import temporary_beside

    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(temporary_beside(target))
        except OSError as error:
            raise CommandError(f"{target} cannot be written: {error.strerror or error}") from error
        with _opened(temporary, target, "xb") as stream:
            yield stream
        replace(temporary, target)


def _opened(file: Path, target: Path, mode: str) -> BinaryIO:
    """Open `file`; an error names `target`, the file that the user knows."""
    try:
        return cast(BinaryIO, file.open(mode))
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _spooled(stream: BinaryIO, needed: bool) -> Iterator[BinaryIO]:
    if not needed:
        yield stream
        return
    with tempfile.TemporaryFile() as temporary:
        yield temporary
        temporary.seek(0)
        shutil.copyfileobj(temporary, stream)


def write_npy(stream: BinaryIO, rows: "Iterable[np.ndarray]", width: int) -> None:
    """Write float32 rows (width,) as one (rows, width) array in NumPy's format."""
    from bertcore.checkpoint.npy_file import NpyStream

    made = NpyStream(stream, "<f4", (width,))
    for row in rows:
        made.write(row[None])
    made.finish()


def write_jsonl(stream: BinaryIO, rows: "Iterable[np.ndarray]") -> None:
    """Write float32 rows (width,) as JSON arrays, one a line, in the shortest digits that give the same float32."""
    import numpy as np

    for number, row in enumerate(rows, 1):
        if not np.isfinite(row).all():
            raise CommandError(f"the embedding of line {number} is not finite, which JSON cannot hold (npy can)")
        stream.write(f"[{', '.join(row.astype(str).tolist())}]\n".encode("ascii"))


def aligned(rows: Sequence[Sequence[str]], titles: Sequence[str] = (), *, right: Sequence[bool] = ()) -> str:
    """Return rows under their titles, each column as wide as its widest cell; `right` ones are aligned to the right."""
    cells = [*([titles] if titles else []), *(list(map(printable, row)) for row in rows)]
    sides = [str.rjust if is_number else str.ljust for is_number in right] or repeat(str.ljust)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ([side(cell, width) for side, cell, width in zip(sides, row, widths, strict=False)] for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)
