"""Scale and shift on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import rows, vector_grid

INSTANTIATIONS = (
    *_cuda.instantiations("affine_rows", _cuda.FLAGS),
    *_cuda.instantiations("affine_columns"),
    *rows.FINAL_SUMS,
)
KERNELS = _cuda.Source(__file__, "affine.cu", INSTANTIATIONS)


def affine(input, weight, bias, residual):
    """Return (input + residual) * weight + bias of (..., width); residual may be None."""
    output, width = _cuda.array_module(input).empty(input.shape, input.dtype), input.shape[-1]
    if output.size:
        arrays = *_cuda.contiguous(input, residual, weight, bias), output
        kernel = _cuda.template("affine_rows", _cuda.c_type(input.dtype), _cuda.is_whole(width, *arrays))
        grid = vector_grid(output.size // width, width, input.itemsize)
        KERNELS.launch(kernel, *grid, (*arrays, *rows.sizes_of(output)))
    return output


def affine_backward(grad_output, input, weight, bias, residual):
    """Return (grad_input, grad_weight, grad_bias)."""
    xp, dtype, width = _cuda.array_module(input), input.dtype, input.shape[-1]
    arrays = _cuda.contiguous(grad_output, input, residual, weight)
    grad_input = xp.empty(input.shape, dtype)
    if grad_input.size == 0:
        return grad_input, xp.zeros(width, dtype), xp.zeros(width, dtype)
    grid = rows.column_grid(input.size // width, width)
    sums = tuple(xp.empty((grid[0], width), np.float32) for _ in range(2))
    args = *arrays, grad_input, *sums, *rows.sizes_of(input)
    KERNELS.launch(_cuda.template("affine_columns", _cuda.c_type(dtype)), grid, rows.COLUMN_BLOCK, args)
    return grad_input, *(rows.sum_partials(KERNELS, it, dtype) for it in sums)
