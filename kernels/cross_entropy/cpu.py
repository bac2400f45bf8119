"""Cross entropy on the CPU: the log-sum-exp of a row in one pass over memory, chunk by chunk.

A chunk is read twice, for its peak and for its sum of exponentials, the second time from the first-level cache. When
the peak rises, the sum so far is scaled down (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax",
https://arxiv.org/abs/1805.02867).
"""

import math

import numpy as np

from .._numba import as_kernel_array, empty, helper, parallel_kernel
from .._numba.rows import flat, peak, share, task_count
from .._numba.simd import (
    broadcast,
    first_lanes,
    lanes,
    load,
    load_masked,
    pointer,
    reduce_add,
    store,
    store_masked,
    wide_pointer,
)
from .._numba.simd.math import exp

CHUNK = 2048
GRAIN = 1 << 17


def cross_entropy(input, target, ignore_index):
    """Return (losses, lse), (rows,) and (rows, 2), from (rows, classes) logits and (rows,) integer targets."""
    rows, classes = input.shape
    losses, lse = np.empty(rows, input.dtype), np.empty((rows, 2), input.dtype)
    _forward(flat(input), _ids(target), ignore_index, classes, losses, lse, task_count(input.size, GRAIN))
    return losses, lse


def cross_entropy_backward(grad_losses, input, target, lse, ignore_index, out):
    """Return the gradient of (rows, classes) logits from that of (rows,) losses and the forward's lse.

    It is written to `out` if that is not None; `out` may be the input.
    """
    grad_input = empty(input.shape, input.dtype) if out is None else out
    if grad_input.size:
        arrays = flat(grad_losses), flat(input), _ids(target), as_kernel_array(lse)
        _backward(*arrays, ignore_index, input.shape[1], grad_input.reshape(-1), task_count(input.size, GRAIN))
    return grad_input


def _ids(target):
    return flat(np.asarray(target, np.int64))


@helper
def _sum_exp(x, count, shift):
    full = count - count % lanes(x)
    total = broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        total += exp(load(x, i) - shift)
    if full < count:
        total += exp(load_masked(x, full, first_lanes(x, count - full), -np.inf) - shift)
    return reduce_add(total)


@helper
def _log_sum_exp(x, classes):
    """Return (log sum exp(x - shift), shift) in float64; shift is the peak if that is finite."""
    highest, shift, total = -np.inf, 0.0, 0.0
    for start in range(0, classes, CHUNK):
        part, count = wide_pointer(x, start), min(CHUNK, classes - start)
        part_peak = float(peak(part, count))
        if part_peak > highest:
            total *= math.exp(highest - part_peak)
            highest = part_peak
            shift = 0.0 if math.isinf(highest) else highest
        total += _sum_exp(part, count, shift)
    return math.log(total), shift


@parallel_kernel
def _forward(x, target, ignore_index, classes, losses, lse, task, tasks):
    rows = len(target)
    for row in range(share(rows, task, tasks), share(rows, task + 1, tasks)):
        log_total, shift = _log_sum_exp(pointer(x, row * classes), classes)
        lse[row, 0], lse[row, 1] = shift, log_total
        losses[row] = 0.0
        if target[row] != ignore_index:
            # This order keeps the digits that lse - x loses if all logits are large.
            losses[row] = log_total - (float(x[row * classes + target[row]]) - shift)


@helper
def _backward_row(x, shift, log_total, grad, out, classes):
    """Compute out = grad * softmax(x)."""
    full = classes - classes % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, exp(load(x, i) - shift - log_total) * grad)
    if full < classes:
        tail = first_lanes(x, classes - full)
        store_masked(out, full, exp(load_masked(x, full, tail, 0.0) - shift - log_total) * grad, tail)


@parallel_kernel
def _backward(grad, x, target, lse, ignore_index, classes, out, task, tasks):
    rows = len(target)
    for row in range(share(rows, task, tasks), share(rows, task + 1, tasks)):
        at = row * classes
        if target[row] == ignore_index:
            out[at : at + classes] = 0.0
        else:
            source, result = wide_pointer(x, at), wide_pointer(out, at)
            _backward_row(source, lse[row, 0], lse[row, 1], grad[row], result, classes)
            out[at + target[row]] -= grad[row]
