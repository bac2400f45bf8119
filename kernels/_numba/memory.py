"""Arrays in the one form that kernels are compiled for."""

import ctypes
import math
import mmap
from contextlib import suppress

import numpy as np


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


def addresses_of(arrays) -> list[int]:
    """Return `address_of` each array."""
    return [_pointer_at(id(array) + object.__basicsize__).value or 0 for array in arrays]


_pointer_at = ctypes.c_void_p.from_address


# --- memory that serves again ----------------------------------------------------------------------------------------
#
# One arena for activations: memory that a result no longer needs serves the next one.
#
# `empty` is numpy.empty for results. The memory of a large array goes back to the arena when the array and all views
# of it are gone, so that a model's pass runs in the memory that the first one took, whatever the C library's
# allocator does with large blocks (glibc's unmaps those above 32 MB, and gives the end of its heap back whenever 128
# KB of it are free: on a virtual machine page faults were a quarter of a training step of a small model, a third of
# BERT-base's). Any thread may take and give back: every step is one atomic operation on a list or a dict.

LEAST = 1 << 17  # bytes: the pages of smaller arrays come from the C library's own lists, quicker
MOST_IDLE = 1 << 30  # bytes kept for later, a training step of BERT-base; beyond it large blocks are let go first
_SLACK = 2  # a block serves an array of at least half its size
_STEPS = 8  # sizes of blocks between a power of two and the next: a block is at most an eighth too large

_LARGE, _SOME = 1 << 22, 16

_idle: dict[int, list[mmap.mmap]] = {}  # by size; the last one was used last, and may still be in a cache


class _Block(np.ndarray):
    """Memory on loan: the mapping it was made of goes back to the arena with its last reference."""

    def __del__(self):
        if _idle is not None and type(self.base) is mmap.mmap:  # None when the interpreter shuts down
            blocks = _idle.setdefault(len(self.base), [])
            blocks.append(self.base)
            if len(self.base) > _LARGE or len(blocks) % _SOME == 0:  # counting takes 3 us
                _let_go_beyond(MOST_IDLE)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised C-contiguous array; a large one begins on a page."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST:
        return np.empty(shape, dtype)
    memory = _take(size) or _new_memory(_rounded(size))
    return np.ndarray(shape, dtype, buffer=_Block(len(memory), np.uint8, memory))


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """numpy.zeros in the memory of the arena."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def _rounded(size: int) -> int:
    step = 1 << (size.bit_length() - _STEPS.bit_length())
    return -(-size // step) * step


def _new_memory(size: int) -> mmap.mmap:
    # Not an ndarray: NumPy makes the innermost ndarray the base of a view of a view, which would lose the _Block.
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, where processes do not fork
            return mmap.mmap(-1, size)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for an array of {size} bytes: {error.strerror}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def release() -> None:
    """Give the idle memory back to the system."""
    _let_go_beyond(0)


def idle_bytes() -> int:
    """How much memory waits for its next use."""
    return sum(size * len(blocks) for size, blocks in list(_idle.items()))


def _take(size: int) -> mmap.mmap | None:
    """The smallest idle block that suits `size` bytes."""
    wanted = _rounded(size)
    while wanted <= _SLACK * size:
        blocks = _idle.get(wanted)
        if blocks:
            with suppress(IndexError):  # another thread was quicker
                return blocks.pop()
        wanted = _rounded(wanted + 1)
    return None


def _let_go_beyond(most: int) -> None:
    excess = idle_bytes() - most
    for size in sorted(_idle, reverse=True) if excess > 0 else ():
        blocks = _idle[size]
        while blocks and excess > 0:
            with suppress(IndexError):
                blocks.pop(0)
            excess -= size
