"""Cross entropy on the CPU: the log-sum-exp of a row in one pass over memory, chunk by chunk.

A chunk is read twice, for its peak and for its sum of exponentials, the second time from the first-level cache. When the
peak rises, what was summed before is scaled down (Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax", https://arxiv.org/abs/1805.02867).
"""

import math

import numpy as np
from numba import prange

from .._numba import helper, kernel
from .._numba.rows import flat, share, task_count
from .._numba.simd import (
    broadcast,
    first_lanes,
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

CHUNK = 2048
GRAIN = 1 << 15


def cross_entropy(input, target, ignore_index):
    """(losses, lse), each (rows,), from (rows, classes) logits and (rows,) integer targets."""
    rows, classes = input.shape
    losses, lse = np.empty((2, rows), input.dtype)
    _forward(flat(input), _ids(target), ignore_index, classes, losses, lse, task_count(input.size, GRAIN))
    return losses, lse


def cross_entropy_backward(grad_losses, input, target, lse, ignore_index):
    """Gradient of the (rows, classes) logits from that of the (rows,) losses and the lse of the forward pass."""
    grad_input = np.empty(input.shape, input.dtype)
    if grad_input.size:
        arrays = flat(grad_losses), flat(input), _ids(target), flat(lse)
        _backward(*arrays, ignore_index, input.shape[1], grad_input.reshape(-1), task_count(input.size, GRAIN))
    return grad_input


def _ids(target):
    return flat(np.asarray(target, np.int64))


@helper
def _peak(x, count):
    full = count - count % lanes(x)
    peak = load_masked(x, full, first_lanes(x, count - full), -np.inf)
    for i in range(0, full, lanes(x)):
        v = load(x, i)
        peak = select(v > peak, v, peak)  # one instruction; a NaN that it loses comes back through the sum
    return reduce_max(peak)


@helper
def _sum_exp(x, count, shift):
    full = count - count % lanes(x)
    total = exp(load_masked(x, full, first_lanes(x, count - full), -np.inf) - shift)
    for i in range(0, full, lanes(x)):
        total += exp(load(x, i) - shift)
    return reduce_add(total)


@helper
def _log_sum_exp(x, classes):
    """(log sum exp(x - shift), shift) in float64; shift is the peak where that is finite."""
    peak, shift, total = -np.inf, 0.0, 0.0
    for start in range(0, classes, CHUNK):
        part, count = pointer(x, start), min(CHUNK, classes - start)
        part_peak = float(_peak(part, count))
        if part_peak > peak:
            total *= math.exp(peak - part_peak)
            peak = part_peak
            shift = 0.0 if math.isinf(peak) else peak
        total += _sum_exp(part, count, shift)
    return math.log(total), shift


@helper
def _forward_rows(x, target, ignore_index, classes, losses, lse, first, last):
    for row in range(first, last):
        log_total, shift = _log_sum_exp(pointer(x, row * classes), classes)
        lse[row] = log_total + shift
        losses[row] = 0.0
        if target[row] != ignore_index:
            # This order keeps the digits that lse - x loses when all logits are large.
            losses[row] = log_total - (float(x[row * classes + target[row]]) - shift)


@kernel(parallel=True)
def _forward(x, target, ignore_index, classes, losses, lse, tasks):
    rows = len(target)
    if tasks == 1:
        _forward_rows(x, target, ignore_index, classes, losses, lse, 0, rows)
    else:
        for task in prange(tasks):
            first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
            _forward_rows(x, target, ignore_index, classes, losses, lse, first, last)


@helper
def _backward_row(x, lse, grad, out, classes):
    """out = grad * softmax(x)."""
    full = classes - classes % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, exp(load(x, i) - lse) * grad)
    tail = first_lanes(x, classes - full)
    store_masked(out, full, exp(load_masked(x, full, tail, 0.0) - lse) * grad, tail)


@helper
def _zeros(out, count):
    full = count - count % lanes(out)
    for i in range(0, full, lanes(out)):
        store(out, i, broadcast(out, 0.0))
    store_masked(out, full, broadcast(out, 0.0), first_lanes(out, count - full))


@helper
def _backward_rows(grad, x, target, lse, ignore_index, classes, out, first, last):
    for row in range(first, last):
        at = row * classes
        if target[row] == ignore_index:
            _zeros(pointer(out, at), classes)
        else:
            _backward_row(pointer(x, at), lse[row], grad[row], pointer(out, at), classes)
            out[at + target[row]] -= grad[row]


@kernel(parallel=True)
def _backward(grad, x, target, lse, ignore_index, classes, out, tasks):
    rows = len(target)
    if tasks == 1:
        _backward_rows(grad, x, target, lse, ignore_index, classes, out, 0, rows)
    else:
        for task in prange(tasks):
            first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
            _backward_rows(grad, x, target, lse, ignore_index, classes, out, first, last)
