"""One step of Adam's family on the CPU: AdamW in one pass over the four arrays, at the speed of memory.

The other rules need sums over the whole parameter for their rate, and take two. The sums are computed within blocks of
BLOCK elements, then over the blocks in order, so that they do not depend on the number of threads.
"""

import functools
import itertools
import math

import numpy as np

from .._numba import addresses_of, as_kernel_array, helper, inline_helper, parallel_kernel
from .._numba.rows import share, task_count
from .._numba.simd import pointer_at
from .reference import BLOCK_8BIT, Numbers, levels, midpoints

GRAIN = 1 << 14
BLOCK = 4096
LANES = 16  # separate sums, which LLVM keeps in vectors


def adam_update(sets, lr, betas, eps, weight_decay, step, rule, grad_scale):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first and second moment) of each.

    AdamW treats all of them as one row of elements: most parameters of a model are small, and a separate call for each
    took 0.2 ms of Python.
    """
    dtype, grad_scale = sets[0][0].dtype, 1.0 if grad_scale is None else float(grad_scale)
    if not math.isfinite(grad_scale):
        return
    numbers = Numbers.at_step(dtype, lr, betas, eps, weight_decay, step, grad_scale)
    sets = [
        (parameter, grad if grad.flags.carray else as_kernel_array(grad), *moments)
        for parameter, grad, *moments in sets
    ]
    if rule == "adamw":
        addresses = np.array(addresses_of(itertools.chain(*sets))).reshape(-1, 4)
        ends = np.cumsum([parameter.size for parameter, *_ in sets])
        _update(addresses, ends, np.empty(0, dtype), numbers, task_count(int(ends[-1]), GRAIN))
        return
    for arrays in sets:
        _update_by_sums(*(array.reshape(-1) for array in arrays), numbers, rule)


def _update_by_sums(parameter, grad, first, second, numbers, rule):
    count, tasks, lr = parameter.size, task_count(parameter.size, GRAIN), float(numbers.lr)
    partial = np.zeros((-(-count // BLOCK), 2, LANES))
    _move_moments(parameter, first, second, grad, numbers, rule == "lamb", partial, tasks)
    left, right = partial.sum(axis=(0, 2)).tolist()
    if rule == "lamb":
        lr = lr * (left / right) ** 0.5 if left > 0 and right > 0 else lr
    elif count:
        lr = lr / max(1.0, (left / count) ** 0.5)
    _move_parameter(parameter, first, second, numbers._replace(lr=parameter.dtype.type(lr)), tasks)


@inline_helper
def _step_of(parameter, m, v, numbers):
    """Return the update of one element."""
    return numbers.scale1 * m / (np.sqrt(v) * numbers.scale2 + numbers.eps) + numbers.weight_decay * parameter


@parallel_kernel
def _update(addresses, ends, like, numbers, task, tasks):
    """Update the task's share of the elements of all parameters; row i of `addresses` belongs to the i-th."""
    first, last, start = share(ends[-1], task, tasks), share(ends[-1], task + 1, tasks), 0
    for row in range(len(ends)):
        end = ends[row]
        parameter, grad = pointer_at(addresses[row, 0], like), pointer_at(addresses[row, 1], like)
        moments = pointer_at(addresses[row, 2], like), pointer_at(addresses[row, 3], like)
        _update_some(parameter, grad, *moments, numbers, max(first, start) - start, min(last, end) - start)
        start = end


@helper
def _update_some(parameter, grad, first, second, numbers, start, end):
    for i in range(start, end):
        g = grad[i] * numbers.grad_scale
        m = numbers.keep1 * first[i] + numbers.take1 * g
        v = numbers.keep2 * second[i] + numbers.take2 * (g * g)
        first[i], second[i] = m, v
        parameter[i] -= numbers.lr * _step_of(parameter[i], m, v, numbers)


@helper
def _move_block(parameter, first, second, grad, numbers, is_lamb, sums, start, end):
    for i in range(start, end):
        g, p = grad[i] * numbers.grad_scale, parameter[i]
        m = numbers.keep1 * first[i] + numbers.take1 * g
        v = numbers.keep2 * second[i] + numbers.take2 * (g * g)
        first[i], second[i] = m, v
        if is_lamb:
            update = np.float64(_step_of(p, m, v, numbers))
            sums[0, i % LANES] += np.float64(p) * p
            sums[1, i % LANES] += update * update
        else:
            root = max(np.sqrt(v) * numbers.scale2, numbers.eps)
            ratio = np.float64(g / root if root > 0 else root)
            sums[0, i % LANES] += ratio * ratio


@parallel_kernel
def _move_moments(parameter, first, second, grad, numbers, is_lamb, partial, task, tasks):
    """Update the moments, and write sums over each block to `partial`.

    The sums are of |parameter|^2 and |u|^2, or of g^2 / max(v', eps^2).
    """
    blocks = len(partial)
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        end = min((block + 1) * BLOCK, parameter.size)
        _move_block(parameter, first, second, grad, numbers, is_lamb, partial[block], block * BLOCK, end)


@parallel_kernel
def _move_parameter(parameter, first, second, numbers, task, tasks):
    for i in range(share(parameter.size, task, tasks), share(parameter.size, task + 1, tasks)):
        parameter[i] -= numbers.lr * _step_of(parameter[i], first[i], second[i], numbers)


SHIFT, LEAST = 16, (127 - 25) << 7  # shares by exponent, from 2^-25 on, and 7 bits: within each at most one midpoint
GRAIN_8BIT = 1 << 6  # blocks


@functools.cache
def _tables(is_signed):
    """Return (midpoints and inf, how many of them are below the shares of each pattern, the numbers of the codes)."""
    points, known = midpoints(is_signed), levels(is_signed)
    starts = (np.arange(LEAST, (127 << 7) + 1, dtype=np.int32) << SHIFT).view(np.float32)
    starts[0] = 0
    known = np.concatenate([known, -known]) if is_signed else known
    return np.append(points, np.float32(np.inf)), np.searchsorted(points, starts).astype(np.uint8), known


def quantize_moment(values, codes, scales, is_signed):
    """Round blocks of a flat float32 array to codes of 8 bits; the definition is in reference.py."""
    points, below, _ = _tables(is_signed)
    _quantize(values, codes, scales, points, below, is_signed, task_count(len(scales), GRAIN_8BIT))


def dequantize_moment(codes, scales, values, is_signed):
    """Write the numbers of the codes to a flat float32 array."""
    _dequantize(codes, scales, values, _tables(is_signed)[2], task_count(len(scales), GRAIN_8BIT))


@parallel_kernel
def _quantize(values, codes, scales, points, below, is_signed, task, tasks):
    for block in range(share(len(scales), task, tasks), share(len(scales), task + 1, tasks)):
        start, end, most = block * BLOCK_8BIT, min((block + 1) * BLOCK_8BIT, values.size), np.float32(0)
        for i in range(start, end):
            most = max(most, abs(values[i]))
        scales[block] = most
        divisor = most if most > 0 else np.float32(1)
        for i in range(start, end):
            part = abs(values[i]) / divisor
            code = np.int32(below[max((np.float32(part).view(np.int32) >> SHIFT) - LEAST, 0)])
            code += part > points[code]
            if is_signed:
                code |= 128 if code > 0 and values[i] < 0 else 0
            elif part > 0:
                code = max(code, 1)
            codes[i] = code


@parallel_kernel
def _dequantize(codes, scales, values, known, task, tasks):
    for block in range(share(len(scales), task, tasks), share(len(scales), task + 1, tasks)):
        for i in range(block * BLOCK_8BIT, min((block + 1) * BLOCK_8BIT, values.size)):
            values[i] = known[codes[i]] * scales[block]
