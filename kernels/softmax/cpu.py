"""Softmax on the CPU: one row at a time, in three passes while the row is in the first-level cache."""

import numpy as np

from .._numba import empty, helper, inline_helper, parallel_kernel
from .._numba.rows import flat, peak, share, task_count
from .._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    reduce_add,
    store,
    store_masked,
    wide_pointer,
)
from .._numba.simd.math import exp

GRAIN = 1 << 16


def softmax(input, dim):
    """Return the softmax of `input` along axis `dim`."""
    return _along(_forward, dim, input)


def softmax_backward(grad_output, output, dim):
    """Return the gradient of the softmax input from the gradient of its output and the output itself."""
    return _along(_backward, dim, grad_output, output)


def _along(kernel, dim, *arrays):
    """Run `kernel` on rows along `dim`; other axes are copied to the end, and back."""
    if dim != arrays[0].ndim - 1:
        moved = _along(kernel, arrays[0].ndim - 1, *(np.moveaxis(array, dim, -1) for array in arrays))
        return np.ascontiguousarray(np.moveaxis(moved, -1, dim))
    output = empty(arrays[0].shape, arrays[0].dtype)
    if output.size:
        kernel(*map(flat, arrays), output.reshape(-1), output.shape[-1], task_count(output.size, GRAIN))
    return output


@inline_helper
def _exp_step(x, out, i, inside, shift):
    e = exp(load_masked(x, i, inside, -np.inf) - shift)
    store_masked(out, i, e, inside)
    return e


@helper
def _forward_row(x, out, width):
    full = width - width % lanes(x)
    everywhere, tail = first_lanes(x, lanes(x)), first_lanes(x, width - full)
    shift = peak(x, width)
    if shift == -np.inf:
        shift = 0.0
    total = broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        total += _exp_step(x, out, i, everywhere, shift)
    if full < width:
        total += _exp_step(x, out, full, tail, shift)
    whole = reduce_add(total)
    factor = 1.0 / whole if whole != 0.0 else 1.0  # 0 if every entry was -inf
    for i in range(0, full, lanes(x)):
        store(out, i, load(out, i) * factor)
    if full < width:
        store_masked(out, full, load_masked(out, full, tail, 0.0) * factor, tail)


@parallel_kernel
def _forward(x, out, width, task, tasks):
    rows = x.size // width
    for at in range(share(rows, task, tasks) * width, share(rows, task + 1, tasks) * width, width):
        _forward_row(wide_pointer(x, at), wide_pointer(out, at), width)


@helper
def _backward_row(grad, y, out, width):
    full = width - width % lanes(y)
    tail = first_lanes(y, width - full)
    total = broadcast(y, 0.0)
    for i in range(0, full, lanes(y)):
        total = fma(load(grad, i), load(y, i), total)
    if full < width:
        total = fma(load_masked(grad, full, tail, 0.0), load_masked(y, full, tail, 0.0), total)
    along = broadcast(y, reduce_add(total))
    for i in range(0, full, lanes(y)):
        store(out, i, load(y, i) * (load(grad, i) - along))
    if full < width:
        last = load_masked(y, full, tail, 0.0) * (load_masked(grad, full, tail, 0.0) - along)
        store_masked(out, full, last, tail)


@parallel_kernel
def _backward(grad, y, out, width, task, tasks):
    rows = y.size // width
    for at in range(share(rows, task, tasks) * width, share(rows, task + 1, tasks) * width, width):
        _backward_row(wide_pointer(grad, at), wide_pointer(y, at), wide_pointer(out, at), width)
