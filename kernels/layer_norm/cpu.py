"""Layer norm on the CPU: mean, squared deviations from it, then the result, in three passes over a row in cache.

A missing weight is ones and a missing bias zeros (they stay in the first-level cache), so that one compiled kernel
serves every combination. The sum with a residual goes through a scratch row in that cache.
"""

import math

import numpy as np
from numba import prange

from .._numba import empty, helper, inline_helper, kernel
from .._numba.rows import BLOCK_ROWS, add_lines, block_count, flat, share, sum_blocks, task_count
from .._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    prefetch,
    reduce_add,
    store_masked,
    wide_pointer,
)

GRAIN = 1 << 15


def layer_norm(input, weight, bias, eps, residual):
    """Layer norm of (..., width); weight and bias are (width,) or None, residual has the shape of input or is None."""
    output = empty(input.shape, input.dtype)
    if output.size:
        width, dtype = input.shape[-1], input.dtype
        parameters = _or_full(weight, 1, width, dtype), _or_full(bias, 0, width, dtype)
        arrays = flat(input), _or_full(residual, 0, 0, dtype), *parameters, output.reshape(-1)
        _forward(*arrays, width, eps, task_count(output.size, GRAIN))
    return output


def layer_norm_backward(grad_output, input, weight, eps, residual):
    """(grad_input, grad_weight or None, grad_bias); mean and variance are computed again from the input."""
    width, dtype = input.shape[-1], input.dtype
    grad_input = empty(input.shape, dtype)
    grad_weight, grad_bias = np.zeros((2, width), dtype)
    if grad_input.size:
        rows = input.size // width
        arrays = flat(grad_output), flat(input), _or_full(residual, 0, 0, dtype), _or_full(weight, 1, width, dtype)
        partial = np.zeros((2, block_count(rows), width), dtype)
        gradients = grad_input.reshape(-1), *partial, grad_weight, grad_bias
        _backward(*arrays, *gradients, width, eps, task_count(input.size, GRAIN))
    return grad_input, None if weight is None else grad_weight, grad_bias


def _or_full(array, value, size, dtype):
    return np.full(size, value, dtype) if array is None else flat(array)


@inline_helper
def _sum(x, width):
    """The sum of a row, in an order that depends on its width alone."""
    full = width - width % lanes(x)
    total = broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        total += load(x, i)
    if full < width:
        total += load_masked(x, full, first_lanes(x, width - full), 0.0)
    return reduce_add(total)


@inline_helper
def _inverse_deviation(x, mean, eps, width):
    """1 / sqrt(variance + eps), from squared deviations: E[x^2] - mean^2 would cancel where the mean is large."""
    full = width - width % lanes(x)
    total = broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        d = load(x, i) - mean
        total = fma(d, d, total)
    if full < width:
        d = load_masked(x, full, first_lanes(x, width - full), mean) - mean
        total = fma(d, d, total)
    return 1.0 / math.sqrt(reduce_add(total) / width + eps)


@inline_helper
def _fetch(x, at, width):
    """Fetch a row ahead: the one before waits for its sums, too long for the processor to see this one coming.

    Measured on (8192, 768) float32, one thread: 25% faster; in cache no slower.
    """
    row = wide_pointer(x, at)
    for i in range(0, width, lanes(row)):
        prefetch(row, i)


@inline_helper
def _row(x, residual, scratch, at, width):
    """The row to normalise: that of x itself, or x + residual written to scratch."""
    if residual.size == 0:
        return wide_pointer(x, at)
    add_lines(wide_pointer(x, at), wide_pointer(residual, at), wide_pointer(scratch, 0), width)
    return wide_pointer(scratch, 0)


@inline_helper
def _output_step(row, weight, bias, mean, scale, out, i, inside):
    normalised = (load_masked(row, i, inside, 0.0) - mean) * scale
    weight, bias = load_masked(weight, i, inside, 0.0), load_masked(bias, i, inside, 0.0)
    store_masked(out, i, fma(normalised, weight, bias), inside)


@helper
def _forward_row(row, weight, bias, out, width, eps):
    full = width - width % lanes(row)
    everywhere = first_lanes(row, lanes(row))  # a constant: the compiler makes plain loads and stores of it
    mean = broadcast(row, _sum(row, width) / width)
    scale = broadcast(row, _inverse_deviation(row, mean, eps, width))
    for i in range(0, full, lanes(row)):
        _output_step(row, weight, bias, mean, scale, out, i, everywhere)
    if full < width:
        _output_step(row, weight, bias, mean, scale, out, full, first_lanes(row, width - full))


@helper
def forward_rows(x, residual, weight, bias, out, width, eps, first, last):
    scratch = np.empty_like(weight)
    for at in range(first * width, last * width, width):
        row = _row(x, residual, scratch, at, width)
        _fetch(x, at + width, width)
        if residual.size:
            _fetch(residual, at + width, width)
        _forward_row(row, wide_pointer(weight, 0), wide_pointer(bias, 0), wide_pointer(out, at), width, eps)


@kernel(parallel=True)
def _forward(x, residual, weight, bias, out, width, eps, tasks):
    rows = x.size // width
    if tasks == 1:
        forward_rows(x, residual, weight, bias, out, width, eps, 0, rows)
    else:
        for task in prange(tasks):
            first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
            forward_rows(x, residual, weight, bias, out, width, eps, first, last)


@inline_helper
def _parameter_step(grad, row, weight, mean, scale, weight_sums, bias_sums, i, inside):
    """Adds to the parameters' gradients; returns g = grad * weight and g * normalised."""
    g = load_masked(grad, i, inside, 0.0)
    normalised = (load_masked(row, i, inside, mean) - mean) * scale
    store_masked(weight_sums, i, fma(g, normalised, load_masked(weight_sums, i, inside, 0.0)), inside)
    store_masked(bias_sums, i, g + load_masked(bias_sums, i, inside, 0.0), inside)
    g *= load_masked(weight, i, inside, 0.0)
    return g, g * normalised


@inline_helper
def _input_step(grad, row, weight, mean, scale, mean_g, mean_along, out, i, inside):
    g = load_masked(grad, i, inside, 0.0) * load_masked(weight, i, inside, 0.0)
    normalised = (load_masked(row, i, inside, 0.0) - mean) * scale
    store_masked(out, i, (g - mean_g - normalised * mean_along) * scale, inside)


@helper
def _backward_row(grad, row, weight, weight_sums, bias_sums, out, width, eps):
    full = width - width % lanes(row)
    everywhere, tail = first_lanes(row, lanes(row)), first_lanes(row, width - full)
    mean = broadcast(row, _sum(row, width) / width)
    scale = broadcast(row, _inverse_deviation(row, mean, eps, width))
    total, along = broadcast(row, 0.0), broadcast(row, 0.0)
    for i in range(0, full, lanes(row)):
        g, g_normalised = _parameter_step(grad, row, weight, mean, scale, weight_sums, bias_sums, i, everywhere)
        total += g
        along += g_normalised
    if full < width:
        g, g_normalised = _parameter_step(grad, row, weight, mean, scale, weight_sums, bias_sums, full, tail)
        total += g
        along += g_normalised
    mean_g, mean_along = broadcast(row, reduce_add(total) / width), broadcast(row, reduce_add(along) / width)
    for i in range(0, full, lanes(row)):
        _input_step(grad, row, weight, mean, scale, mean_g, mean_along, out, i, everywhere)
    if full < width:
        _input_step(grad, row, weight, mean, scale, mean_g, mean_along, out, full, tail)


@helper
def _backward_block(grad, x, residual, weight, out, weight_sums, bias_sums, width, eps, block):
    scratch = np.empty_like(weight)
    sums = wide_pointer(weight_sums, block * width), wide_pointer(bias_sums, block * width)
    start = block * BLOCK_ROWS * width
    for at in range(start, min(start + BLOCK_ROWS * width, x.size), width):
        row = _row(x, residual, scratch, at, width)
        _fetch(x, at + width, width)
        _fetch(grad, at + width, width)
        _backward_row(wide_pointer(grad, at), row, wide_pointer(weight, 0), *sums, wide_pointer(out, at), width, eps)


@kernel(parallel=True)
def _backward(grad, x, residual, weight, out, weight_sums, bias_sums, grad_weight, grad_bias, width, eps, tasks):
    blocks = len(weight_sums)
    if tasks == 1:
        for block in range(blocks):
            _backward_block(grad, x, residual, weight, out, weight_sums, bias_sums, width, eps, block)
    else:
        for task in prange(tasks):
            for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
                _backward_block(grad, x, residual, weight, out, weight_sums, bias_sums, width, eps, block)
    sum_blocks(weight_sums, grad_weight)
    sum_blocks(bias_sums, grad_bias)
