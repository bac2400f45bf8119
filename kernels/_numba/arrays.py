"""Arrays in the one form that kernels are compiled for."""

import ctypes
import math

import numpy as np

from .arena import LEAST, empty


class _WritableAlias:
    """Read-only memory under an interface that says writable; keeps its owner alive."""

    def __init__(self, array):
        self.owner = array
        self.__array_interface__ = interface = array.__array_interface__
        interface["data"] = (interface["data"][0], False)  # array.ctypes.data would take three times as long


CACHE_LINE = 64


def aligned_empty(shape, dtype) -> np.ndarray:
    """An uninitialised C-contiguous array that starts on a cache line (and so on a boundary of the widest vectors)."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size >= LEAST:
        return empty(shape, dtype)
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def as_kernel_array(array: np.ndarray) -> np.ndarray:
    """`array` C-contiguous, aligned and typed as writable, so that a kernel needs one specialisation per dtype.

    No copy is made of contiguous memory: a read-only array comes back as an alias that only claims to be writable
    (kernels do not write to their inputs). Anything else is copied.
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        return np.array(array, order="C")
    return array if flags.writeable else np.asarray(_WritableAlias(array))


def as_addressed_array(array: np.ndarray, unit_columns: bool = True) -> np.ndarray:
    """`array` as a kernel can read it by its address and strides: aligned, so that every stride is a whole number of
    elements, and unless `unit_columns` is False its last axis contiguous. A copy is made only of what is not so.

    Whatever goes to a kernel as an address passes through here: a float32 at an odd address, as memory-mapped files
    have them, would otherwise be read from where it is not.
    """
    has_unit_columns = array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    fits = array.flags.aligned and (has_unit_columns or not unit_columns)
    return array if fits else np.array(array, order="C")


def address_of(array: np.ndarray) -> int:
    """Where the first element lies: what an array's object begins with, by NumPy's binary interface.

    0.3 us; array.__array_interface__["data"] and array.ctypes.data take 1.8 us.
    """
    return _pointer_at(id(array) + object.__basicsize__).value or 0


_pointer_at = ctypes.c_void_p.from_address
