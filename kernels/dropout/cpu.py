"""Dropout on the CPU: the bits of 64 elements, then the elements."""

import numpy as np

from .._numba import empty, parallel_kernel
from .._numba.philox import BLOCK, fill_bits
from .._numba.rows import flat, share, task_count
from ..philox import threshold

GRAIN = 1 << 14


def dropout(input, p, seed, residual):
    """`input` with elements dropped, plus `residual`."""
    output, dtype = empty(input.shape, input.dtype), input.dtype
    if output.size:
        tasks = task_count(output.size, GRAIN)
        added = np.empty(0, dtype) if residual is None else flat(residual)
        bits = np.empty((tasks, BLOCK), np.uint32)
        numbers = np.uint64(seed), np.uint32(threshold(p)), dtype.type(1 / (1 - p))
        _forward(flat(input), added, output.reshape(-1), bits, *numbers, tasks)
    return output


def dropout_backward(grad_output, p, seed):
    """Gradient of the dropout input from the gradient of its output."""
    return dropout(grad_output, p, seed, None)


@parallel_kernel
def _forward(x, residual, out, bits, seed, threshold, factor, task, tasks):
    blocks, bits = -(-x.size // BLOCK), bits[task]
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        fill_bits(bits, seed, np.uint64(0), block)
        first = block * BLOCK
        for i in range(min(BLOCK, x.size - first)):
            kept = x[first + i] * factor if bits[i] >= threshold else x.dtype.type(0)
            out[first + i] = kept + residual[first + i] if residual.size else kept
