"""Arrays in NumPy's format: written some rows at a time, and mapped after a check of dtype and shape."""

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .files import CheckpointError, missing_file


class NpyStream:
    """An array that is written some rows at a time; `finish` completes it.

    The header is written again when the number of rows is known; NumPy pads it, so that its length stays the same.
    """

    def __init__(self, stream: BinaryIO, dtype: str, row: tuple[int, ...] = ()):
        self._stream, self._dtype, self._row, self.rows = stream, np.dtype(dtype), row, 0
        self._start = stream.tell()
        self._write_header()
        self._body = stream.tell()

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self._row)}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def write(self, rows: np.ndarray) -> None:
        self._stream.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        self.rows += len(rows)

    def finish(self) -> None:
        self._stream.seek(self._start)
        self._write_header()
        if self._stream.tell() != self._body:
            raise RuntimeError(f"the header for {self.rows} rows ends at {self._stream.tell()}, expected {self._body}")
        self._stream.seek(0, os.SEEK_END)


def map_npy(file: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Map an array of this dtype and shape, read-only. Raises CheckpointError for any other file; never unpickles."""
    if not file.is_file():
        raise missing_file(file, f"has no {file.name}")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{file} is not an intact array: {error}") from error
    found = (array.dtype, array.shape) if isinstance(array, np.ndarray) else (type(array).__name__, None)
    if found != (np.dtype(dtype), shape) or not array.flags.c_contiguous:
        raise CheckpointError(f"{file} holds {found[0]} {found[1]}, expected {np.dtype(dtype)} {shape}")
    return np.asarray(array)
