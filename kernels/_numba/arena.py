"""One arena for activations: memory that a result no longer needs serves the next one.

`empty` is numpy.empty for results. The memory of a large array goes back to the arena when the array and all views of
it are gone, so that a model's forward pass runs in the memory that the first one took, whatever the C library's
allocator does with large blocks (glibc's unmaps those above 32 MB: 8 % of a forward of BERT-base at 8x512 were page
faults). Any thread may take and give back: every step is one atomic operation on a dict.
"""

import math
import mmap
from contextlib import suppress

import numpy as np

LEAST = 1 << 22  # bytes: what NumPy gets in huge pages; smaller arrays come from the C library's own lists, quicker
MOST_IDLE = 1 << 28  # bytes kept for later; beyond it the blocks that have waited longest are let go
_SLACK = 2  # a block serves an array of at least half its size

_idle: dict[int, mmap.mmap] = {}  # by the identity of the objects


class _Block(np.ndarray):
    """Memory on loan: the mapping it was made of goes back to the arena with its last reference."""

    def __del__(self):
        if _idle is not None and type(self.base) is mmap.mmap:  # None when the interpreter shuts down
            _idle[id(self.base)] = self.base
            _let_go_beyond(MOST_IDLE)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised C-contiguous array; a large one begins on a page."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST:
        return np.empty(shape, dtype)
    memory = _take(size) or _new_memory(size)
    return np.ndarray(shape, dtype, buffer=_Block(len(memory), np.uint8, memory))


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
    return sum(len(memory) for memory in list(_idle.values()))


def _take(size: int) -> mmap.mmap | None:
    """The smallest idle block that suits `size` bytes."""
    fitting = [(len(memory), key) for key, memory in list(_idle.items()) if size <= len(memory) <= _SLACK * size]
    for _, key in sorted(fitting):
        memory = _idle.pop(key, None)
        if memory is not None:  # else another thread was quicker
            return memory
    return None


def _let_go_beyond(most: int) -> None:
    excess = idle_bytes() - most
    for key in list(_idle):
        if excess <= 0:
            return
        memory = _idle.pop(key, None)
        excess -= 0 if memory is None else len(memory)
