"""Kernels over rows: contiguous memory, shares for threads, and sums that do not depend on the number of threads.

A kernel gets `tasks` from `task_count`, and task t computes the rows from `share(rows, t, tasks)` to `share(rows, t +
1, tasks)`. With one task it calls its body directly, without a parallel region.

A gradient summed over rows is summed within blocks of BLOCK_ROWS rows, each by one task, and then over the blocks in
order (`sum_blocks`): its bits are the same for any number of threads.
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
    """Return `array` in the form of the kernels, with one axis: one specialisation serves any number of axes."""
    flags = array.flags
    is_ready = flags.c_contiguous and flags.aligned and flags.writeable
    return array.reshape(-1) if is_ready else as_kernel_array(array).reshape(-1)


def or_empty(array: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Return `flat(array)`, or an empty array for None."""
    return np.empty(0, dtype) if array is None else flat(array)


def task_count(work: int, grain: int) -> int:
    """Return the number of tasks for `work` elements: one per thread, but each with at least `grain` elements.

    The grains of the operations are about 15 us of work, above which two tasks beat one while the pool is awake.
    """
    most = work // grain
    return 1 if most < 2 else min(num_threads(), most)


def block_count(rows: int) -> int:
    """Return the number of blocks of BLOCK_ROWS rows, including a partial one."""
    return -(-rows // BLOCK_ROWS)


@helper
def share(count, task, tasks):
    """Return the first of a task's share of `count` items; shares differ by at most one item."""
    return count * task // tasks


@inline_helper
def rounded_up(count, size):
    """Return `count` rounded up to a multiple of `size`."""
    return (count + size - 1) // size * size


@helper
def add_lines(a, b, out, width):
    """Compute out = a + b for `width` elements at pointers of one kind."""
    full = width - width % lanes(a)
    for i in range(0, full, lanes(a)):
        store(out, i, load(a, i) + load(b, i))
    if full < width:
        tail = first_lanes(a, width - full)
        store_masked(out, full, load_masked(a, full, tail, 0.0) + load_masked(b, full, tail, 0.0), tail)


@inline_helper
def row_with_residual(x, residual, out, at, width):
    """Return a pointer to the row of x at `at`, or to x + residual, written to the memory of the row's result."""
    if residual.size == 0:
        return wide_pointer(x, at)
    add_lines(wide_pointer(x, at), wide_pointer(residual, at), wide_pointer(out, at), width)
    return wide_pointer(out, at)


@helper
def peak(x, width):
    """Return the maximum of a row. NaN may be lost, which is five times cheaper; exp(x - peak) restores it."""
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
    """Add partial[block, c] for all blocks, in order, to total[c], which is float64."""
    for block in range(len(partial)):
        for c in range(len(total)):
            total[c] += partial[block, c]


# --- tasks ------------------------------------------------------------------------------------------------------------


@intrinsic
def take_task(typingctx, counter):
    """Return counter[0] and increment it atomically; `counter` is a C-contiguous int64 array, zero at the start.

    Threads take the next task from a shared counter, so that a slow thread does not hold up the others.
    """

    def codegen(context, builder, sig, args):
        data = context.make_array(counter)(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), codegen
