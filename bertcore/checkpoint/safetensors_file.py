"""One safetensors file, memory-mapped.

Format: 8 bytes with the header's length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, then the
tensors back to back (https://github.com/huggingface/safetensors, "Format").

The safetensors library checks the file: header, offsets, overlaps, length. The arrays are then views of the mapped file
at the header's offsets, because the library's own NumPy reader copies each tensor.
"""

import importlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import CheckpointError, content_of

# bfloat16 is read as uint16, and seen as ml_dtypes.bfloat16 (see `native`).
NUMPY_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip

MOST_HEADER_BYTES = 8 << 20  # 74,000 tensors; reading takes 13 times as much memory

MOST_DIMENSIONS = 8
LARGEST = 2**48  # elements: beyond any file, and far from overflowing 64 bits

EXPLANATIONS = {
    "file not fully covered": "its length is not what its header says (truncated or still downloading?)",
    "header too small": "it is shorter than a header",
    "invalid header length": "it ends inside its header (truncated?)",
    "header too large": "it does not start with a safetensors header",
}


@dataclass(frozen=True)
class TensorInfo:
    """The place of a tensor: its file, dtype as safetensors spells it ("F32", "BF16", ...), shape and first byte."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


def could_be_array(shape: Sequence[int]) -> bool:
    """Return whether NumPy can make an array of that shape; like NumPy, count an axis of size 0 as 1."""
    return len(shape) <= MOST_DIMENSIONS and math.prod(size for size in shape if size) <= LARGEST


class SafetensorsFile:
    """The tensors of one safetensors file: `info` maps each name to its TensorInfo, `read(name)` gives its array.

    Raises CheckpointError, naming the file and the problem, for anything that is not an intact safetensors file.
    """

    def __init__(self, file: Path):
        from safetensors import SafetensorError, safe_open

        self.file = file
        try:
            with file.open("rb") as stream:
                size = int.from_bytes(stream.read(8), "little")
                if MOST_HEADER_BYTES < size <= file.stat().st_size - 8:  # one beyond the file is an error below
                    raise CheckpointError(f"{file}: its header has {size} bytes, expected at most {MOST_HEADER_BYTES}")
                try:
                    with safe_open(file, framework="np"):
                        pass
                except (SafetensorError, OSError) as error:
                    reason = _explain(file, error)
                    raise CheckpointError(f"{file} is not an intact safetensors file: {reason}") from error
                if not os.path.samestat(os.fstat(stream.fileno()), file.stat()):
                    raise CheckpointError(f"{file} was replaced while it was opened; load it again")
                self._bytes = content_of(stream)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
        start = 8 + int.from_bytes(self._bytes[:8], "little")
        header = json.loads(self._bytes[8:start])
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self.info = {
            name: TensorInfo(file, entry["dtype"], tuple(entry["shape"]), start + entry["data_offsets"][0])
            for name, entry in header.items()
        }
        for name, info in self.info.items():
            if not could_be_array(info.shape):
                problem = f"has the shape {list(info.shape)}, which no array can have"
                raise CheckpointError(f"{file}: tensor {name} {problem}")

    def read(self, name: str) -> np.ndarray:
        """Read a tensor as a read-only array in the machine's byte order; bfloat16 is the dtype of ml_dtypes."""
        info, dtype = self.info[name], numpy_dtype(name, self.info[name])
        count = math.prod(info.shape)
        if count == 0:  # frombuffer refuses a zero-length tensor at the very end of the file
            return native(np.empty(info.shape, dtype), info.dtype)
        return native(np.frombuffer(self._bytes, dtype, count, info.offset).reshape(info.shape), info.dtype)


def numpy_dtype(name: str, info: TensorInfo) -> np.dtype:
    """Return NumPy's little-endian dtype of a tensor. Raises CheckpointError if it has none."""
    if info.dtype not in NUMPY_DTYPES:
        known = ", ".join(NUMPY_DTYPES)
        raise CheckpointError(f"{info.file}: tensor {name} is stored as {info.dtype}; readable are {known}")
    return np.dtype(NUMPY_DTYPES[info.dtype])


def native(array: np.ndarray, dtype: str) -> np.ndarray:
    """Convert an array of a file, stored as `dtype`, to a read-only aligned array in the machine's byte order."""
    # No format promises alignment; compiled kernels need it. Files written by the libraries pass without a copy.
    array = np.require(array.astype(array.dtype.newbyteorder("="), copy=False), requirements="A")
    if dtype == "BF16":
        array = array.view(importlib.import_module("ml_dtypes").bfloat16)
    array.flags.writeable = False
    return array


def _explain(file: Path, error: Exception) -> str:
    with file.open("rb") as stream:
        if stream.read(20).startswith(b"version https://git"):
            return "it is a git-lfs pointer; fetch the weights themselves with `git lfs pull`"
    reason = str(error).removeprefix("Error while deserializing header: ")
    for phrase, explanation in EXPLANATIONS.items():
        if phrase in reason:
            return f"{explanation} [{reason}]"
    return reason


def write_safetensors(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` by name. Raises OSError, naming the file, if it cannot be written (a full disk)."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), file, metadata={"format": "pt"})  # transformers refuses a file without this entry
    except SafetensorError as error:  # only its text has the number of a system error
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
