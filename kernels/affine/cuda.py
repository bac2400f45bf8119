"""Scale and shift on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import column_sums
from .._cuda.vectors import vector_of_row_plan

INSTANTIATIONS = (
    *(f"affine_rows<{c_name}, {flag}>" for c_name in _cuda.C_TYPES.values() for flag in _cuda.FLAGS),
    *(f"affine_columns<{c_name}>" for c_name in _cuda.C_TYPES.values()),
    *column_sums.FINAL,
)
KERNELS = _cuda.Module(__file__, "affine.cu", INSTANTIATIONS)


def affine(input, weight, bias, residual):
    """(input + residual) * weight + bias of (..., width); residual may be None."""
    xp = _cuda.array_module(input)
    input, weight, bias = xp.ascontiguousarray(input), xp.ascontiguousarray(weight), xp.ascontiguousarray(bias)
    residual = None if residual is None else xp.ascontiguousarray(residual)
    output = xp.empty(input.shape, input.dtype)
    if output.size:
        width = input.shape[-1]
        rows, arrays = output.size // width, (input, residual, weight, bias, output)
        name = f"affine_rows<{_cuda.c_type(input.dtype)}, {_cuda.FLAGS[_cuda.is_whole(width, *arrays)]}>"
        plan = vector_of_row_plan(rows, width, input.itemsize)
        KERNELS.launch(name, *plan, (*arrays, np.int64(rows), np.int32(width)))
    return output


def affine_backward(grad_output, input, weight, bias, residual):
    """(grad_input, grad_weight, grad_bias)."""
    xp, dtype, width = _cuda.array_module(input), input.dtype, input.shape[-1]
    grad_output, input, weight = map(xp.ascontiguousarray, (grad_output, input, weight))
    residual = None if residual is None else xp.ascontiguousarray(residual)
    grad_input = xp.empty(input.shape, dtype)
    if grad_input.size == 0:
        return grad_input, xp.zeros(width, dtype), xp.zeros(width, dtype)
    rows = input.size // width
    grid = column_sums.grid(rows, width)
    sums = tuple(xp.empty((grid[0], width), np.float32) for _ in range(2))
    args = grad_output, input, residual, weight, grad_input, *sums, np.int64(rows), np.int32(width)
    KERNELS.launch(f"affine_columns<{_cuda.c_type(dtype)}>", grid, column_sums.BLOCK, args)
    return grad_input, *(column_sums.finish(KERNELS, it, dtype) for it in sums)
