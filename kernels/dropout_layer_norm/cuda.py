"""Dropout, residual and layer norm on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

One launch forward. Backward one leaves the gradients of input and residual, with what was dropped and the statistics of
the rows; two sum up the parameters'. Rows that the kernels do not take (they are aligned, of a multiple of 64 elements
up to 4096) go through the operations that this one is made of; the sum is not rounded there either, only its parts.
"""

import numpy as np

from .. import _cuda
from .._cuda import column_sums, norms, rows
from .._cuda.dropping import dropping
from ..dropout import cuda as dropout_cuda
from ..layer_norm import cuda as layer_norm_cuda
from ..philox import BLOCK

INSTANTIATIONS = (
    *rows.register_instantiations("dropout_norm"),
    *rows.register_instantiations("dropout_norm_backward"),
    *(f"dropout_norm_backward_columns<{c_name}>" for c_name in _cuda.C_TYPES.values()),
    *column_sums.FINAL,
)
KERNELS = _cuda.Module(__file__, "dropout_layer_norm.cu", INSTANTIATIONS)


def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """(..., width); weight and bias are (width,) or None."""
    arrays, output = _contiguous(input, residual, weight, bias), _empty_like(input)
    plan = _plan("dropout_norm", output, *arrays)
    if plan is None:
        dropped = dropout_cuda.dropout(input, p, seed, None)
        return layer_norm_cuda.layer_norm(dropped, weight, bias, eps, residual)
    KERNELS.launch(*plan, (*arrays, output, *_sizes(input), np.float32(eps), *dropping(p, seed)))
    return output


def dropout_layer_norm_backward(grad_output, input, residual, weight, bias, eps, p, seed, dtype):
    """(grad_input, grad_residual, grad_weight or None, grad_bias or None), the last two in `dtype`; what was dropped is
    drawn again."""
    arrays, grads = _contiguous(grad_output, input, residual, weight), (_empty_like(input), _empty_like(input))
    plan = _plan("dropout_norm_backward", *grads, *arrays)
    if plan is None:
        return _in_parts(grad_output, input, residual, weight, bias, eps, p, seed, dtype)
    xp, sizes = _cuda.array_module(input), _sizes(input)
    statistics = xp.empty((int(sizes[0]), norms.STATISTICS), np.float32)
    kept = xp.empty(input.nbytes // 16, np.uint8)  # a byte for a vector
    KERNELS.launch(*plan, (*arrays, *grads, statistics, kept, *sizes, np.float32(eps), *dropping(p, seed)))
    kernel = f"dropout_norm_backward_columns<{_cuda.c_type(input.dtype)}>"
    args = *arrays[:3], statistics, kept, np.float32(1 / (1 - p))
    return *grads, *norms.parameter_gradients(KERNELS, kernel, args, sizes, weight, bias, dtype)


def _in_parts(grad_output, input, residual, weight, bias, eps, p, seed, dtype):
    dropped = dropout_cuda.dropout(input, p, seed, None)
    arrays = grad_output, dropped, weight, bias, eps, residual
    grad_sum, *of_parameters = layer_norm_cuda.layer_norm_backward(*arrays, dtype)
    return dropout_cuda.dropout_backward(grad_sum, p, seed), grad_sum, *of_parameters


def _contiguous(*arrays):
    return [None if array is None else _cuda.array_module(array).ascontiguousarray(array) for array in arrays]


def _empty_like(array):
    return _cuda.array_module(array).empty(array.shape, array.dtype)


def _plan(kernel, array, *beside):
    """The `rows.register_plan` of a kernel above; None for rows that it does not take."""
    takes = array.size and array.shape[-1] % BLOCK == 0
    return rows.register_plan(kernel, array, *beside) if takes else None


def _sizes(array):
    width = array.shape[-1]
    return np.int64(array.size // width), np.int32(width)
