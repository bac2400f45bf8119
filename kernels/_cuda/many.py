"""Launching a kernel over many arrays at once (many.cuh): small arrays would each cost a launch."""

import functools
from typing import Any, NamedTuple

import numpy as np

from . import runtime

THREADS, CHUNK = 256, 4096  # as in many.cuh


class Table(NamedTuple):
    """The addresses of the arrays, on the device, and the number of chunks that all of them are cut into."""

    rows: Any
    chunks: int

    def launch(self, module, kernel, *args):
        """Start `kernel` with a block for each chunk; its first arguments are the rows and their number."""
        if self.chunks:
            given = self.rows, np.int32(len(self.rows)), *args
            module.launch(kernel, (self.chunks,), (THREADS,), given)


def table_of(sets):
    """The table of tuples of arrays, those of a tuple of one size, contiguous; the arrays must outlive the launch.

    It goes to the device by a copy that nothing waits for, unless the last tables there had one of the same arrays: in
    training most are where they were in the step before.
    """
    cuda = runtime()
    sizes = np.array([arrays[0].size for arrays in sets])
    addresses = np.array([cuda.address(array) for arrays in sets for array in arrays], np.int64)
    chunks = -(-sizes // CHUNK)
    rows = np.column_stack([addresses.reshape(len(sets), -1), sizes, chunks.cumsum() - chunks])[sizes > 0]
    return Table(_on_device(cuda, cuda.device_index(), cuda.stream(), rows.shape, rows.tobytes()), int(chunks.sum()))


@functools.lru_cache(maxsize=16)
def _on_device(cuda, device, stream, shape, rows):
    """These rows in memory of the device, there before all that the stream is given from now on."""
    return cuda.array_module(None).asarray(np.frombuffer(rows, np.int64).reshape(shape))
