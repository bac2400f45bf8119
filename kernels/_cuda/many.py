"""Launching a kernel over many arrays at once (many.cuh): small arrays would each cost a launch."""

from typing import Any, NamedTuple

import numpy as np

from . import array_module, runtime

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

    It goes to the device by a copy that nothing waits for.
    """
    rows, chunks = [], 0
    for arrays in sets:
        size = arrays[0].size
        if size:
            rows.append([*map(runtime().address, arrays), size, chunks])
            chunks += -(-size // CHUNK)
    return Table(array_module(sets[0][0]).asarray(np.array(rows, np.int64)), chunks)
