"""Kernels over rows: contiguous memory, shares for threads, and sums over rows that do not depend on the shares.

A kernel gets `tasks` from `task_count` and gives task t the rows from `share(rows, t, tasks)` to
`share(rows, t + 1, tasks)`; with one task it calls its body directly, without a parallel region.

A gradient summed over rows is summed within fixed blocks of BLOCK_ROWS rows, each by one task, and then over the blocks
in their order (`sum_blocks`): its bits are the same with any number of threads.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import helper, inline_helper
from .memory import as_kernel_array
from .simd import (
    broadcast,
    first_lanes,
    lanes,
    load,
    load_masked,
    reduce_greatest,
    select,
    store,
    store_masked,
    wide_pointer,
)
from .threads import num_threads

BLOCK_ROWS = 64


def flat(array: np.ndarray) -> np.ndarray:
    """`array` as a kernel takes it, with one axis: one specialisation for arrays of any number of axes."""
    return as_kernel_array(array).reshape(-1)


def or_empty(array: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """`flat` of an array, or an empty one where it is absent."""
    return np.empty(0, dtype) if array is None else flat(array)


def task_count(work: int, grain: int) -> int:
    """How many tasks to make of `work` elements: one per thread, but none of fewer than `grain` elements.

    The grains of the operations are about 15 us of work. Measured on 2 cores: a parallel region costs 1.3 us more than
    a plain call while the pool is awake, and two tasks then beat one from 15 us of work on; after some milliseconds of
    idleness it costs 15 to 40 us, but in a model the next region follows at once.
    """
    most = work // grain
    return 1 if most < 2 else min(num_threads(), most)


def block_count(rows: int) -> int:
    """The number of blocks of BLOCK_ROWS rows, the last one partial."""
    return -(-rows // BLOCK_ROWS)


@helper
def share(count, task, tasks):
    """Where task's part of `count` things begins; the parts differ by one thing at most."""
    return count * task // tasks


@helper
def add_lines(a, b, out, width):
    """out = a + b over `width` elements at pointers of one kind."""
    full = width - width % lanes(a)
    for i in range(0, full, lanes(a)):
        store(out, i, load(a, i) + load(b, i))
    if full < width:
        tail = first_lanes(a, width - full)
        store_masked(out, full, load_masked(a, full, tail, 0.0) + load_masked(b, full, tail, 0.0), tail)


@inline_helper
def row_with_residual(x, residual, out, at, width):
    """The row of x that begins at `at`; or x + residual, written to where the row's result will be."""
    if residual.size == 0:
        return wide_pointer(x, at)
    add_lines(wide_pointer(x, at), wide_pointer(residual, at), wide_pointer(out, at), width)
    return wide_pointer(out, at)


@helper
def peak(x, width):
    """The greatest number of a row; NaN may be lost (which is five times cheaper): exp(x - peak) brings it back."""
    full = width - width % lanes(x)
    greatest = broadcast(x, -np.inf)
    for i in range(0, full, lanes(x)):
        v = load(x, i)
        greatest = select(v > greatest, v, greatest)
    if full < width:
        v = load_masked(x, full, first_lanes(x, width - full), -np.inf)
        greatest = select(v > greatest, v, greatest)
    return reduce_greatest(greatest)


@helper
def sum_blocks(partial, total):
    """Adds partial[block, c] over the blocks, in their order, to total[c], which is float64."""
    for block in range(len(partial)):
        for c in range(len(total)):
            total[c] += partial[block, c]


# --- tasks ------------------------------------------------------------------------------------------------------------


@intrinsic
def take_task(typingctx, counter):
    """counter[0]++, atomically; the value before. `counter` is a C-contiguous int64 array, zero at the start."""

    def codegen(context, builder, sig, args):
        data = context.make_array(counter)(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), codegen
