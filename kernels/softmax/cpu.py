"""Softmax on the CPU: a row at a time, in three passes over a row that the first-level cache still holds."""

import numpy as np
from numba import prange

from .._numba import helper, kernel
from .._numba.rows import flat, share, task_count
from .._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    pointer,
    reduce_add,
    reduce_max,
    select,
    store,
    store_masked,
)
from .._numba.simd_math import exp

GRAIN = 1 << 15


def softmax(input, dim):
    """Softmax of `input` along axis `dim`."""
    return _along(_forward, dim, input)


def softmax_backward(grad_output, output, dim):
    """Gradient of the softmax input from the gradient of its output and the output itself."""
    return _along(_backward, dim, grad_output, output)


def _along(kernel, dim, *arrays):
    """Run `kernel` on rows along `dim`, which for any but the last axis are copied into place and back."""
    rows = [np.moveaxis(array, dim, -1) for array in arrays]
    output = np.empty(rows[0].shape, rows[0].dtype)
    if output.size:
        kernel(*map(flat, rows), output.reshape(-1), output.shape[-1], task_count(output.size, GRAIN))
    return np.ascontiguousarray(np.moveaxis(output, -1, dim))


@helper
def _forward_row(x, out, width):
    full = width - width % lanes(x)
    tail = first_lanes(x, width - full)
    last = load_masked(x, full, tail, -np.inf)
    peak = last
    for i in range(0, full, lanes(x)):
        v = load(x, i)
        peak = select(v > peak, v, peak)  # one instruction; a NaN that it loses comes back through the sum
    shift = reduce_max(peak)
    if shift == -np.inf:
        shift = 0.0
    total = exp(last - shift)
    store_masked(out, full, total, tail)
    for i in range(0, full, lanes(x)):
        e = exp(load(x, i) - shift)
        store(out, i, e)
        total += e
    _scale(out, reduce_add(total), width)


@helper
def _scale(out, total, width):
    """out /= total; a total of 0 (every entry -inf) leaves the zeros."""
    factor = 1.0 / total if total != 0.0 else 1.0
    full = width - width % lanes(out)
    for i in range(0, full, lanes(out)):
        store(out, i, load(out, i) * factor)
    tail = first_lanes(out, width - full)
    store_masked(out, full, load_masked(out, full, tail, 0.0) * factor, tail)


@kernel(parallel=True)
def _forward(x, out, width, tasks):
    rows = x.size // width
    if tasks == 1:
        _forward_rows(x, out, width, 0, rows)
    else:
        for task in prange(tasks):
            _forward_rows(x, out, width, share(rows, task, tasks), share(rows, task + 1, tasks))


@helper
def _forward_rows(x, out, width, first, last):
    for row in range(first, last):
        _forward_row(pointer(x, row * width), pointer(out, row * width), width)


@helper
def _backward_row(grad, y, out, width):
    full = width - width % lanes(y)
    tail = first_lanes(y, width - full)
    last = load_masked(y, full, tail, 0.0)
    last_grad = load_masked(grad, full, tail, 0.0)
    total = last * last_grad
    for i in range(0, full, lanes(y)):
        total = fma(load(grad, i), load(y, i), total)
    along = broadcast(y, reduce_add(total))
    for i in range(0, full, lanes(y)):
        store(out, i, load(y, i) * (load(grad, i) - along))
    store_masked(out, full, last * (last_grad - along), tail)


@helper
def _backward_rows(grad, y, out, width, first, last):
    for row in range(first, last):
        at = row * width
        _backward_row(pointer(grad, at), pointer(y, at), pointer(out, at), width)


@kernel(parallel=True)
def _backward(grad, y, out, width, tasks):
    rows = y.size // width
    if tasks == 1:
        _backward_rows(grad, y, out, width, 0, rows)
    else:
        for task in prange(tasks):
            _backward_rows(grad, y, out, width, share(rows, task, tasks), share(rows, task + 1, tasks))
