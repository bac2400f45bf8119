"""Dropout, residual and layer norm on the CPU, row by row; the sum is written to the memory of the row's result.

The backward recomputes the sum of a row, so that layers keep one array less.
"""

import numpy as np

from .._numba import empty, helper, kernel, parallel_kernel, region
from .._numba.dropout import FIRST_ROW, drop_and_add_line, drop_line, dropping, keep_factors
from .._numba.norms import backward_row, fetch_row, forward_row, or_full
from .._numba.rows import BLOCK_ROWS, block_count, flat, share, sum_blocks, task_count
from .._numba.simd import wide_pointer

GRAIN = 1 << 14


def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """Return (..., width); weight and bias are (width,) or None."""
    output = empty(input.shape, input.dtype)
    if output.size:
        width, dtype, tasks = input.shape[-1], input.dtype, task_count(output.size, GRAIN)
        arrays = flat(input), flat(residual), or_full(weight, 1, width, dtype), or_full(bias, 0, width, dtype)
        _forward(arrays, output.reshape(-1), eps, *dropping(p, seed, tasks, width, dtype), tasks)
    return output


def dropout_layer_norm_backward(grad_output, input, residual, weight, bias, eps, p, seed, dtype):
    """Return (grad_input, grad_residual, grad_weight or None, grad_bias or None)."""
    width = input.shape[-1]
    grad_input, grad_residual, sums = empty(input.shape, dtype), empty(input.shape, dtype), np.zeros((2, width))
    if grad_input.size:
        tasks = task_count(input.size, GRAIN)
        arrays = flat(grad_output), flat(input), flat(residual), or_full(weight, 1, width, dtype)
        partial = np.zeros((2, block_count(input.size // width), width), dtype)
        targets = (grad_input.reshape(-1), grad_residual.reshape(-1)), tuple(partial), tuple(sums)
        _backward(arrays, *targets, eps, *dropping(p, seed, tasks, width, dtype), tasks)
    grad_weight, grad_bias = sums.astype(dtype)
    return grad_input, grad_residual, None if weight is None else grad_weight, None if bias is None else grad_bias


@parallel_kernel
def _forward(arrays, out, eps, seed, threshold, factor, factors, task, tasks):
    x, residual, weight, bias = arrays
    width = weight.size
    rows = x.size // width
    for at in range(share(rows, task, tasks) * width, share(rows, task + 1, tasks) * width, width):
        fetch_row(x, at + width, width)
        fetch_row(residual, at + width, width)
        kept = wide_pointer(keep_factors(seed, FIRST_ROW, threshold, factor, factors[task], at, width), 0)
        row = wide_pointer(out, at)
        drop_and_add_line(wide_pointer(x, at), kept, wide_pointer(residual, at), row, width)
        forward_row(row, wide_pointer(weight, 0), wide_pointer(bias, 0), row, width, eps, True)


@helper
def _backward_row(arrays, out, sums, eps, kept, at, width):
    grad, x, residual, weight = arrays
    row = wide_pointer(out[1], at)  # the sum, then its gradient
    drop_and_add_line(wide_pointer(x, at), kept, wide_pointer(residual, at), row, width)
    backward_row(wide_pointer(grad, at), row, wide_pointer(weight, 0), *sums, row, width, eps, True)
    drop_line(row, kept, wide_pointer(out[0], at), width)


@region
def _backward_blocks(arrays, out, partial, eps, seed, threshold, factor, factors, task, tasks):
    blocks, width = partial[0].shape
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        sums = wide_pointer(partial[0], block * width), wide_pointer(partial[1], block * width)
        start = block * BLOCK_ROWS * width
        for at in range(start, min(start + BLOCK_ROWS * width, out[0].size), width):
            for array in arrays[:3]:
                fetch_row(array, at + width, width)
            kept = wide_pointer(keep_factors(seed, FIRST_ROW, threshold, factor, factors[task], at, width), 0)
            _backward_row(arrays, out, sums, eps, kept, at, width)


@kernel(regions=True)
def _backward(arrays, out, partial, sums, eps, seed, threshold, factor, factors, tasks):
    """Compute the gradients; `arrays` is (grad, x, residual, weight), `out` the gradients of x and residual.

    `partial` (blocks, width) and `sums` (width,), float64, are zeros at first, for weight and bias each.
    """
    _backward_blocks(arrays, out, partial, eps, seed, threshold, factor, factors, tasks)
    sum_blocks(partial[0], sums[0])
    sum_blocks(partial[1], sums[1])
