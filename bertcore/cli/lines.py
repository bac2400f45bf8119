"""Texts from a file or stdin, one a line."""

import codecs
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from bertcore.cli.common import CommandError


@contextmanager
def input_stream(path: str) -> Iterator[tuple[BinaryIO, str]]:
    """The bytes of the file `path`, or of stdin for "-", and what to call them in a message.

    Raises CommandError when stdin is closed.
    """
    if path != "-":
        with open(path, "rb") as stream:
            yield stream, path
        return
    if sys.stdin is None:
        raise CommandError("stdin is closed: give INPUT, a file of texts")
    if sys.stdin.isatty():
        print("bertcore: reading texts from the terminal, one a line; Ctrl-D ends them", file=sys.stderr)
    yield sys.stdin.buffer, "stdin"


def read_lines(stream: Iterable[bytes], name: str, *, first: int = 1) -> Iterator[str]:
    """The lines of UTF-8 bytes, without their ends (LF or CRLF); CommandError names the line that is not UTF-8.

    `first` is the number of the first one, where the stream does not start with the file.
    """
    for number, line in enumerate(stream, first):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{name}, line {number}: byte {error.start + 1} ({line[error.start]:#04x}) is not UTF-8; "
                "convert the text first, for example with iconv -t utf-8"
            ) from error
