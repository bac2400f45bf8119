"""Kernels over rows: contiguous memory, shares for threads, and sums over rows that do not depend on the shares.

A kernel gets `tasks` from `task_count` and gives task t the rows from `share(rows, t, tasks)` to
`share(rows, t + 1, tasks)`; with one task it calls its body directly, without a parallel region.

A gradient summed over rows is summed within fixed blocks of BLOCK_ROWS rows, each by one task, and then over the blocks
in their order (`sum_blocks`): its bits are the same with any number of threads.
"""

import numpy as np

from .arrays import as_kernel_array
from .jit import helper
from .threads import num_threads

BLOCK_ROWS = 64


def flat(array: np.ndarray) -> np.ndarray:
    """`array` as a kernel takes it, with one axis: one specialisation for arrays of any number of axes."""
    return as_kernel_array(array).reshape(-1)


def task_count(work: int, grain: int) -> int:
    """How many tasks to make of `work` elements: one per thread, but none of fewer than `grain` elements.

    Measured on 2 cores: a parallel region costs 1.5 us more than a plain call while the threads are awake, and 10 to
    50 us when they have gone to sleep. The grains of the operations are about 15 us of work.
    """
    return max(1, min(num_threads(), work // grain))


def block_count(rows: int) -> int:
    """The number of blocks of BLOCK_ROWS rows, the last one partial."""
    return -(-rows // BLOCK_ROWS)


@helper
def share(count, task, tasks):
    """Where task's part of `count` things begins; the parts differ by one thing at most."""
    return count * task // tasks


@helper
def sum_blocks(partial, total):
    """total[c] = the sum of partial[block, c] over the blocks, in their order, in float64."""
    blocks, width = partial.shape
    exact = np.zeros(width)
    for block in range(blocks):
        for c in range(width):
            exact[c] += partial[block, c]
    for c in range(width):
        total[c] = exact[c]
