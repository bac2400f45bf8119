"""Arrays in the form that kernels are compiled for, and memory for results."""

import ctypes
import math
import mmap
import weakref
from contextlib import suppress
from typing import Any

import numpy as np


class _WritableAlias:
    """Read-only memory that claims to be writable; it keeps its owner alive."""

    def __init__(self, array):
        self.owner = array
        self.__array_interface__ = interface = array.__array_interface__
        interface["data"] = (interface["data"][0], False)  # array.ctypes.data would take three times as long


CACHE_LINE = 64


def aligned_empty(shape, dtype) -> np.ndarray:
    """Return an uninitialised C-contiguous array that starts on a cache line, and so is aligned for all vectors."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size >= LEAST:
        return empty(shape, dtype)
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def as_kernel_array(array: np.ndarray) -> np.ndarray:
    """Return `array` C-contiguous, aligned and typed as writable, so that a kernel needs one specialisation per dtype.

    Contiguous memory is not copied: for a read-only array an alias claims to be writable (kernels do not write to their
    inputs).
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        return np.array(array, order="C")
    return array if flags.writeable else np.asarray(_WritableAlias(array))


def as_addressed_array(array: np.ndarray, unit_columns: bool = True) -> np.ndarray:
    """Return `array`, copied only if necessary, so that a kernel can read it by address and strides.

    It is aligned and, with `unit_columns`, its last axis is contiguous.
    Every array passed as an address goes through this function: memory-mapped files may have floats at odd addresses.
    """
    has_unit_columns = array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    fits = array.flags.aligned and (has_unit_columns or not unit_columns)
    return array if fits else np.array(array, order="C")


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element, the first field of an array object in NumPy's binary interface.

    It takes 0.3 us; array.__array_interface__["data"] and array.ctypes.data take 1.8 us.
    """
    return _pointer_at(id(array) + object.__basicsize__).value or 0


def addresses_of(arrays) -> list[int]:
    """Return `address_of` each array."""
    return [_pointer_at(id(array) + object.__basicsize__).value or 0 for array in arrays]


_pointer_at = ctypes.c_void_p.from_address


# --- memory that is reused --------------------------------------------------------------------------------------------
#
# `empty` is numpy.empty for results. When a large array and all its views are gone, its memory is kept for the next
# one, so that a model's pass runs in the memory that the first pass took: the C library returns large blocks to the
# system, and page faults were up to a third of a training step. Any thread may take and return blocks: every step is
# one atomic operation on a list or a dict.

LEAST = 1 << 17  # bytes; smaller arrays come faster from the C library
MOST_IDLE = 1 << 30  # bytes kept, a training step of BERT-base; beyond them large blocks are released first
_SLACK = 2  # a block serves an array of at least half its size
_STEPS = 8  # block sizes between two powers of two: a block is at most an eighth too large

_LARGE, _SOME = 1 << 22, 16

SHARED = 1 << 25  # bytes of a block of lasting arrays; pages that were never written take no memory
_HUGE_PAGE = 1 << 21

_tails: list[tuple[Any, int]] = []  # blocks of lasting arrays (weak references), each with its first free byte
_idle: dict[int, list[mmap.mmap]] = {}  # by size; the last one was used last and may still be cached


class _Block(np.ndarray):
    """Memory in use: its mapping becomes idle with the last reference."""

    def __del__(self):
        if _idle is not None and type(self.base) is mmap.mmap:  # None at interpreter shutdown
            blocks = _idle.setdefault(len(self.base), [])
            blocks.append(self.base)
            if len(self.base) > _LARGE or len(blocks) % _SOME == 0:  # counting takes 3 us
                _let_go_beyond(MOST_IDLE)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised C-contiguous array; a large one begins on a page."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST:
        return np.empty(shape, dtype)
    memory = _take(size) or _new_memory(_rounded(size))
    return np.ndarray(shape, dtype, buffer=_Block(len(memory), np.uint8, memory))


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros in reused memory."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def lasting_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return uninitialised memory that begins on a page, for arrays that live long: prepared weights.

    Such arrays follow one another in blocks that the system can map to huge pages. A pass reads every weight once, and
    with 4 KB pages it waits for their addresses: with huge pages a product of 16 rows takes 3 to 8 % less time, one of
    128 rows 1 to 5 %. A block becomes idle with its last array.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not LEAST <= size <= SHARED // 2:
        return aligned_empty(shape, dtype)
    block, at = None, 0
    with suppress(IndexError):  # another thread has it
        found, at = _tails.pop()
        block = found()
    if block is None or at + size > len(block):
        block = empty((SHARED,), np.uint8).base
        at = -block.ctypes.data % _HUGE_PAGE
    _tails.append((weakref.ref(block), at + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE))
    return np.ndarray(shape, dtype, block, at)


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
        with suppress(OSError):  # not supported
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def release() -> None:
    """Return idle memory to the system."""
    _let_go_beyond(0)


def idle_bytes() -> int:
    """Return how much memory is idle."""
    return sum(size * len(blocks) for size, blocks in list(_idle.items()))


def _take(size: int) -> mmap.mmap | None:
    """Take the smallest idle block that suits `size` bytes."""
    wanted = _rounded(size)
    while wanted <= _SLACK * size:
        blocks = _idle.get(wanted)
        if blocks:
            with suppress(IndexError):  # another thread was faster
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
