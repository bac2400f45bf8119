"""Records of a program's steps (kernels/program): addresses and numbers, read by compiled code."""

import functools
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numba import carray

from .compile import inline_helper
from .simd import pointer_at

# For `array_at`.
FLOAT, BFLOAT16, INT8, UINT8 = np.float32(0), np.uint16(0), np.int8(0), np.uint8(0)
INT32, UINT32, INT64 = np.int32(0), np.uint32(0), np.int64(0)
ADDRESS = np.intp


def record(*fields: tuple) -> np.dtype:
    """Return the dtype of a step's records from (name, dtype) fields, aligned as compiled code reads it."""
    return np.dtype(list(fields), align=True)


def filled(kind: np.dtype, records: Sequence[Collection]) -> np.ndarray:
    """Return an array of records from their values, in the order of the fields; a nested record is a flat tuple.

    Missing values at the end are zeros. np.array(records, kind) takes 60 us for a record of attention, this 6.
    """
    size = kind.itemsize
    memory = bytearray(len(records) * size)
    for index, values in enumerate(records):
        _packer(kind, len(values)).pack_into(memory, index * size, *_flat(values))
    return np.ndarray(len(records), kind, memory)


@functools.cache
def _packer(kind: np.dtype, count: int) -> struct.Struct:
    """Return a struct that writes the first `count` fields: an aligned dtype has the layout of a C struct."""
    return struct.Struct("@" + "".join(_format(kind[name]) for name in kind.names[:count]))


def _format(kind: np.dtype) -> str:
    return kind.char if kind.names is None else "".join(_format(kind[name]) for name in kind.names)


def _flat(values: Iterable) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if type(value) is tuple:
            flat += value
        else:
            flat.append(value)
    return flat


@inline_helper
def array_at(address, shape, like):
    """Return the C-contiguous array of like's dtype (a typed scalar) at an address."""
    return carray(pointer_at(address, like), shape)
