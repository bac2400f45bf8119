"""A scale and a shift for each column on the CPU, row by row."""

import numpy as np

from .._numba import empty, helper, inline_helper, kernel, parallel_kernel, region
from .._numba.rows import BLOCK_ROWS, block_count, flat, or_empty, row_with_residual, share, sum_blocks, task_count
from .._numba.simd import first_lanes, fma, lanes, load_masked, store_masked, wide_pointer

GRAIN = 1 << 15


def affine(input, weight, bias, residual):
    """Return (input + residual) * weight + bias of (..., width); residual may be None."""
    output = empty(input.shape, input.dtype)
    if output.size:
        arrays = flat(input), or_empty(residual, input.dtype), flat(weight), flat(bias), output.reshape(-1)
        _forward(*arrays, task_count(output.size, GRAIN))
    return output


def affine_backward(grad_output, input, weight, bias, residual):
    """Return (grad_input, grad_weight, grad_bias)."""
    width, dtype = input.shape[-1], input.dtype
    grad_input, sums = empty(input.shape, dtype), np.zeros((2, width))
    if grad_input.size:
        arrays = flat(grad_output), flat(input), or_empty(residual, dtype), flat(weight), grad_input.reshape(-1)
        partial = np.zeros((2, block_count(input.size // width), width), dtype)
        _backward(*arrays, tuple(partial), tuple(sums), task_count(input.size, GRAIN))
    return grad_input, *sums.astype(dtype)


@inline_helper
def _forward_vector(row, weight, bias, out, i, inside):
    x, scale = load_masked(row, i, inside, 0.0), load_masked(weight, i, inside, 0.0)
    store_masked(out, i, fma(x, scale, load_masked(bias, i, inside, 0.0)), inside)


@helper
def forward_rows(x, residual, weight, bias, out, first, last):
    """Compute the rows from `first` to `last`."""
    width = weight.size
    scale, shift = wide_pointer(weight, 0), wide_pointer(bias, 0)
    full = width - width % lanes(scale)
    for at in range(first * width, last * width, width):
        row, target = row_with_residual(x, residual, out, at, width), wide_pointer(out, at)
        for i in range(0, full, lanes(row)):
            _forward_vector(row, scale, shift, target, i, first_lanes(row, lanes(row)))
        if full < width:
            _forward_vector(row, scale, shift, target, full, first_lanes(row, width - full))


@parallel_kernel
def _forward(x, residual, weight, bias, out, task, tasks):
    rows = x.size // weight.size
    forward_rows(x, residual, weight, bias, out, share(rows, task, tasks), share(rows, task + 1, tasks))


@inline_helper
def _backward_vector(grad, row, weight, weight_sums, bias_sums, out, i, inside):
    g = load_masked(grad, i, inside, 0.0)
    products = fma(g, load_masked(row, i, inside, 0.0), load_masked(weight_sums, i, inside, 0.0))
    store_masked(weight_sums, i, products, inside)
    store_masked(bias_sums, i, g + load_masked(bias_sums, i, inside, 0.0), inside)
    store_masked(out, i, g * load_masked(weight, i, inside, 0.0), inside)


@region
def _backward_blocks(grad, x, residual, weight, out, partial, task, tasks):
    blocks, width = partial[0].shape
    scale = wide_pointer(weight, 0)
    full = width - width % lanes(scale)
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        sums = wide_pointer(partial[0], block * width), wide_pointer(partial[1], block * width)
        start = block * BLOCK_ROWS * width
        for at in range(start, min(start + BLOCK_ROWS * width, x.size), width):
            row = row_with_residual(x, residual, out, at, width)
            g, target = wide_pointer(grad, at), wide_pointer(out, at)
            for i in range(0, full, lanes(row)):
                _backward_vector(g, row, scale, *sums, target, i, first_lanes(row, lanes(row)))
            if full < width:
                _backward_vector(g, row, scale, *sums, target, full, first_lanes(row, width - full))


@kernel(regions=True)
def _backward(grad, x, residual, weight, out, partial, sums, tasks):
    """Compute the gradients; `partial` (blocks, width) and `sums` (width,), float64, of both start as zeros."""
    _backward_blocks(grad, x, residual, weight, out, partial, tasks)
    sum_blocks(partial[0], sums[0])
    sum_blocks(partial[1], sums[1])
