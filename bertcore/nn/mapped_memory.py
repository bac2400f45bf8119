"""Memory of mapped files."""

import mmap
from contextlib import suppress

import numpy as np


def release_pages(array: np.ndarray) -> None:
    """Give the memory of `array` back to the system if it is mapped from a file; pages read again are loaded again."""
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else None
    if not isinstance(mapping, mmap.mmap) or not owner.readonly or not array.flags.c_contiguous:
        return  # what could be written to might be nowhere else
    start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mapping, "madvise"):  # not on Windows
        with suppress(OSError):  # locked in memory
            mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
