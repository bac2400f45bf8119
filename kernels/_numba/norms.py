"""Layer norm and RMS norm: the statistics of a row, then the result, in passes over a row in cache.

RMS norm is layer norm with a mean of 0. Missing weights are ones and missing biases zeros (they stay in the first-level
cache), so that one compiled kernel serves every combination. The sum with a residual is written to the memory of the
result: nothing is allocated while threads run.

A row is read as shrink * row. `shrink` is 1 unless the sums would overflow; then it is a power of 2 small enough, and
the result, which does not depend on scale, stays exact.
"""

import math

import numpy as np

from .compile import helper, inline_helper, kernel, parallel_kernel, region
from .memory import empty
from .rows import BLOCK_ROWS, block_count, flat, or_empty, row_with_residual, share, sum_blocks, task_count
from .simd import (
    broadcast,
    first_lanes,
    fma,
    itemsize,
    lanes,
    load,
    load_masked,
    prefetch,
    reduce_add,
    store_masked,
    wide_pointer,
)

GRAIN = 1 << 15


def normalise(input, weight, bias, eps, residual, centred):
    """Normalise the rows of input + residual (from their mean if `centred`), scale by weight and add bias."""
    output = empty(input.shape, input.dtype)
    if output.size:
        width, dtype = input.shape[-1], input.dtype
        parameters = or_full(weight, 1, width, dtype), or_full(bias, 0, width, dtype)
        arrays = flat(input), or_empty(residual, dtype), parameters, output.reshape(-1)
        _forward(*arrays, width, eps, centred, task_count(output.size, GRAIN))
    return output


def normalise_backward(grad_output, input, weight, eps, residual, centred):
    """Return the gradients of input, weight and bias; statistics are computed again from the input."""
    width, dtype = input.shape[-1], input.dtype
    grad_input, sums = empty(input.shape, dtype), np.zeros((2, width))
    if grad_input.size:
        arrays = flat(grad_output), flat(input), or_empty(residual, dtype), or_full(weight, 1, width, dtype)
        partial = np.zeros((2, block_count(input.size // width), width), dtype)
        targets = grad_input.reshape(-1), tuple(partial), tuple(sums)
        _backward(arrays, *targets, eps, centred, task_count(input.size, GRAIN))
    return grad_input, *sums.astype(dtype)


def or_full(array, value, width, dtype):
    """Return a parameter in the form of the kernels; for None, an array of `width` times `value`."""
    return np.full(width, value, dtype) if array is None else flat(array)


@inline_helper
def _sum(x, width, shrink):
    """Return the sum of a row, in an order that depends on its width alone."""
    full = width - width % lanes(x)
    total = broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        total = fma(load(x, i), shrink, total)
    if full < width:
        total = fma(load_masked(x, full, first_lanes(x, width - full), 0.0), shrink, total)
    return reduce_add(total)


@inline_helper
def _sums_of_deviations(x, width, mean, shrink):
    """Return the sums of the deviations from the mean and of their squares; E[x^2] - mean^2 would cancel."""
    full = width - width % lanes(x)
    total, squares = broadcast(x, 0.0), broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        d = fma(load(x, i), shrink, -mean)
        total += d
        squares = fma(d, d, squares)
    if full < width:
        d = fma(load_masked(x, full, first_lanes(x, width - full), mean / shrink), shrink, -mean)
        total += d
        squares = fma(d, d, squares)
    return reduce_add(total), reduce_add(squares)


@inline_helper
def _statistics(x, width, eps, centred):
    """Return (mean, 1 / sqrt(mean square + eps), shrink) of shrink * row, as vectors."""
    shrink, mean = broadcast(x, 1.0), broadcast(x, 0.0)
    if centred:
        mean = broadcast(x, _sum(x, width, shrink) / width)
    rest, squares = _sums_of_deviations(x, width, mean, shrink)
    if not squares < np.inf:
        factor, least = (2.0**-80, 2e-38) if itemsize(x) == 4 else (2.0**-540, 2e-308)
        shrink, mean = broadcast(x, factor), broadcast(x, 0.0)
        if centred:
            mean = broadcast(x, _sum(x, width, shrink) / width)
            rest, _ = _sums_of_deviations(x, width, mean, shrink)
            mean += rest / width  # now exact for equal numbers
        _, squares = _sums_of_deviations(x, width, mean, shrink)
        deviation = math.hypot(math.sqrt(squares / width), math.sqrt(eps) * factor)
        if eps > 0.0:
            deviation = max(deviation, least)  # for equal numbers: 0 * 5e37, not 0 * inf
        return mean, broadcast(x, 1.0 / deviation), shrink
    variance = squares / width
    if centred:  # removes the rounding error of the mean: equal numbers have no other deviation
        variance = max(variance - (rest / width) * (rest / width), 0.0)
        mean += rest / width
    return mean, broadcast(x, 1.0 / math.sqrt(variance + eps)), shrink


@inline_helper
def fetch_row(x, at, width):
    """Fetch the next row while the current one waits for its sums; 25 % faster on rows beyond the caches."""
    row = wide_pointer(x, at)
    for i in range(0, width, lanes(row)):
        prefetch(row, i)


@inline_helper
def _output_step(row, weight, bias, mean, scale, shrink, out, i, inside):
    normalised = fma(load_masked(row, i, inside, 0.0), shrink, -mean) * scale
    weight, bias = load_masked(weight, i, inside, 0.0), load_masked(bias, i, inside, 0.0)
    store_masked(out, i, fma(normalised, weight, bias), inside)


@helper
def forward_row(row, weight, bias, out, width, eps, centred):
    full = width - width % lanes(row)
    everywhere = first_lanes(row, lanes(row))  # a constant, for which the compiler emits plain loads and stores
    mean, scale, shrink = _statistics(row, width, eps, centred)
    for i in range(0, full, lanes(row)):
        _output_step(row, weight, bias, mean, scale, shrink, out, i, everywhere)
    if full < width:
        _output_step(row, weight, bias, mean, scale, shrink, out, full, first_lanes(row, width - full))


@helper
def forward_rows(x, residual, parameters, out, width, eps, centred, first, last):
    """Normalise the rows from `first` to `last`; `parameters` is (weight, bias)."""
    weight, bias = parameters
    for at in range(first * width, last * width, width):
        row = row_with_residual(x, residual, out, at, width)
        fetch_row(x, at + width, width)
        if residual.size:
            fetch_row(residual, at + width, width)
        forward_row(row, wide_pointer(weight, 0), wide_pointer(bias, 0), wide_pointer(out, at), width, eps, centred)


@parallel_kernel
def _forward(x, residual, parameters, out, width, eps, centred, task, tasks):
    rows = x.size // width
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    forward_rows(x, residual, parameters, out, width, eps, centred, first, last)


@inline_helper
def _parameter_step(grad, row, weight, statistics, weight_sums, bias_sums, i, inside):
    """Add to the parameters' gradients; return g = grad * weight and g * normalised."""
    mean, scale, shrink = statistics
    g = load_masked(grad, i, inside, 0.0)
    normalised = fma(load_masked(row, i, inside, mean / shrink), shrink, -mean) * scale
    store_masked(weight_sums, i, fma(g, normalised, load_masked(weight_sums, i, inside, 0.0)), inside)
    store_masked(bias_sums, i, g + load_masked(bias_sums, i, inside, 0.0), inside)
    g *= load_masked(weight, i, inside, 0.0)
    return g, g * normalised


@inline_helper
def _input_step(grad, row, weight, statistics, mean_g, mean_along, out, i, inside):
    mean, scale, shrink = statistics
    g = load_masked(grad, i, inside, 0.0) * load_masked(weight, i, inside, 0.0)
    normalised = fma(load_masked(row, i, inside, 0.0), shrink, -mean) * scale
    store_masked(out, i, (g - mean_g - normalised * mean_along) * (scale * shrink), inside)


@helper
def backward_row(grad, row, weight, weight_sums, bias_sums, out, width, eps, centred):
    full = width - width % lanes(row)
    everywhere, tail = first_lanes(row, lanes(row)), first_lanes(row, width - full)
    statistics = _statistics(row, width, eps, centred)
    total, along = broadcast(row, 0.0), broadcast(row, 0.0)
    for i in range(0, full, lanes(row)):
        g, g_normalised = _parameter_step(grad, row, weight, statistics, weight_sums, bias_sums, i, everywhere)
        total += g
        along += g_normalised
    if full < width:
        g, g_normalised = _parameter_step(grad, row, weight, statistics, weight_sums, bias_sums, full, tail)
        total += g
        along += g_normalised
    mean_g, mean_along = broadcast(row, 0.0), broadcast(row, reduce_add(along) / width)
    if centred:
        mean_g = broadcast(row, reduce_add(total) / width)
    for i in range(0, full, lanes(row)):
        _input_step(grad, row, weight, statistics, mean_g, mean_along, out, i, everywhere)
    if full < width:
        _input_step(grad, row, weight, statistics, mean_g, mean_along, out, full, tail)


@helper
def _backward_block(arrays, out, partial, width, eps, centred, block):
    grad, x, residual, weight = arrays
    sums = wide_pointer(partial[0], block * width), wide_pointer(partial[1], block * width)
    start = block * BLOCK_ROWS * width
    for at in range(start, min(start + BLOCK_ROWS * width, x.size), width):
        row, target = row_with_residual(x, residual, out, at, width), wide_pointer(out, at)
        fetch_row(x, at + width, width)
        fetch_row(grad, at + width, width)
        backward_row(wide_pointer(grad, at), row, wide_pointer(weight, 0), *sums, target, width, eps, centred)


@region
def _backward_blocks(arrays, out, partial, eps, centred, task, tasks):
    blocks, width = partial[0].shape
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        _backward_block(arrays, out, partial, width, eps, centred, block)


@kernel(regions=True)
def _backward(arrays, out, partial, sums, eps, centred, tasks):
    """Compute the gradients; `arrays` is (grad, x, residual, weight).

    `partial` (blocks, width) and `sums` (width,), float64, are zeros at first, for weight and bias each.
    """
    _backward_blocks(arrays, out, partial, eps, centred, tasks)
    sum_blocks(partial[0], sums[0])
    sum_blocks(partial[1], sums[1])
