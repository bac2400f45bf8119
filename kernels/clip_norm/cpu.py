"""Clipping by the joint norm on the CPU: the squares in one pass over all arrays, the scaling in a second one.

A run of RUN elements is summed in the arrays' dtype, the runs in their order in float64. If the sum of a run leaves the
range of float32, it is computed once more from numbers scaled by a power of 2.
"""

import math
from typing import NamedTuple

import numpy as np

from .._numba import addresses_of, as_kernel_array, helper, parallel_kernel
from .._numba.rows import share, task_count
from .._numba.simd import broadcast, first_lanes, fma, lanes, load, load_masked, pointer_at, reduce_add, wide_pointer

RUN = 4096
GRAIN = 1 << 15
LEAST_SQUARES = 1e-28  # a smaller sum of squares in float32 may have lost terms that were too small
UP = 2.0**70


class _Lines(NamedTuple):
    """Arrays as lines of memory, and where the runs of each end among all runs."""

    arrays: list
    addresses: np.ndarray
    sizes: np.ndarray
    runs: np.ndarray

    @property
    def tasks(self):
        return task_count(int(self.sizes.sum()), GRAIN)


def clip_norm(arrays, max_norm):
    """Scale the arrays in place and return their norm before scaling."""
    lines = _lines(arrays)
    norm = _norm(lines)
    if max_norm < norm < np.inf:
        scale = lines.arrays[0].dtype.type(max_norm / norm)
        _scale(lines.addresses, lines.sizes, lines.runs, scale, lines.tasks)
        for array, line in zip(arrays, lines.arrays, strict=True):
            if not np.may_share_memory(array, line):
                _in_order_of_memory(array)[...] = line
    return norm


def joint_norm(arrays):
    """Return the norm, a float64 array without axes."""
    return np.array(_norm(_lines(arrays)))


def _lines(arrays):
    lines = [array if array.flags.carray else as_kernel_array(_in_order_of_memory(array)) for array in arrays]
    sizes = np.array([line.size for line in lines])
    return _Lines(lines, np.array(addresses_of(lines)), sizes, np.cumsum(-(-sizes // RUN)))


def _norm(lines):
    partial, like = np.empty(lines.runs[-1]), np.empty(0, lines.arrays[0].dtype)
    _sum_squares(lines.addresses, lines.sizes, lines.runs, like, partial, lines.tasks)
    return math.sqrt(partial.sum())


def _in_order_of_memory(array):
    """Return the array with axes sorted by descending stride: contiguous if any order of axes is."""
    if array.flags.c_contiguous:
        return array
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


@helper
def _squares(x, count, scale):
    """Return the sum of (x * scale)^2 over `count` elements."""
    full = count - count % lanes(x)
    total, scale = broadcast(x, 0.0), broadcast(x, scale)
    for i in range(0, full, lanes(x)):
        v = load(x, i) * scale
        total = fma(v, v, total)
    if full < count:
        v = load_masked(x, full, first_lanes(x, count - full), 0.0) * scale
        total = fma(v, v, total)
    return np.float64(reduce_add(total))


@helper
def _squares_of_run(x, count):
    total = _squares(x, count, 1.0)
    if LEAST_SQUARES < total < np.inf:
        return total
    scale = UP if total < LEAST_SQUARES else 1 / UP
    return _squares(x, count, scale) / (scale * scale)


@parallel_kernel
def _sum_squares(addresses, sizes, runs, like, partial, task, tasks):
    """Compute the sums of the runs of all arrays in order; `runs` holds the end of each array's runs."""
    first, last, start = share(len(partial), task, tasks), share(len(partial), task + 1, tasks), 0
    for row in range(len(sizes)):
        x = pointer_at(addresses[row], like)
        for run in range(max(first, start), min(last, runs[row])):
            at = (run - start) * RUN
            partial[run] = _squares_of_run(wide_pointer(x, at), min(RUN, sizes[row] - at))
        start = runs[row]


@parallel_kernel
def _scale(addresses, sizes, runs, scale, task, tasks):
    first, last, start = share(runs[-1], task, tasks), share(runs[-1], task + 1, tasks), 0
    for row in range(len(sizes)):
        x = pointer_at(addresses[row], scale)
        begin, end = (max(first, start) - start) * RUN, min((min(last, runs[row]) - start) * RUN, sizes[row])
        for i in range(begin, end):
            x[i] *= scale
        start = runs[row]
