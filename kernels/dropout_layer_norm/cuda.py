"""Dropout, residual and layer norm on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

Forward takes one launch. Backward takes three: one writes the gradients of input and residual, the dropped elements and
the statistics of the rows; two sum up the parameters' gradients. The kernels accept aligned rows of a multiple of 64
elements, up to 4096; other rows use dropout and layer_norm, which round the parts of the sum, but not the sum.
"""

import numpy as np

from .. import _cuda
from .._cuda import rows
from .._cuda.elements import dropout_arguments
from ..dropout import cuda as dropout_cuda
from ..layer_norm import cuda as layer_norm_cuda
from ..philox import BLOCK

INSTANTIATIONS = (
    *rows.register_kernels("dropout_norm"),
    *rows.register_kernels("dropout_norm_backward"),
    *_cuda.instantiations("dropout_norm_backward_columns"),
    *rows.FINAL_SUMS,
)
KERNELS = _cuda.Source(__file__, "dropout_layer_norm.cu", INSTANTIATIONS)


def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """Return layer_norm(dropout(input) + residual), (..., width); weight and bias are (width,) or None."""
    arrays, output = _cuda.contiguous(input, residual, weight, bias), _empty_like(input)
    launch = _choose("dropout_norm", output, *arrays)
    if launch is None:
        dropped = dropout_cuda.dropout(input, p, seed, None)
        return layer_norm_cuda.layer_norm(dropped, weight, bias, eps, residual)
    KERNELS.launch(*launch, (*arrays, output, *rows.sizes_of(input), np.float32(eps), *dropout_arguments(p, seed)))
    return output


def dropout_layer_norm_backward(grad_output, input, residual, weight, bias, eps, p, seed, dtype):
    """Return (grad_input, grad_residual, grad_weight, grad_bias), the last two in `dtype` or None."""
    arrays, grads = _cuda.contiguous(grad_output, input, residual, weight), (_empty_like(input), _empty_like(input))
    launch = _choose("dropout_norm_backward", *grads, *arrays)
    if launch is None:
        dropped = dropout_cuda.dropout(input, p, seed, None)
        in_parts = grad_output, dropped, weight, bias, eps, residual, dtype
        grad_sum, *of_parameters = layer_norm_cuda.layer_norm_backward(*in_parts)
        return dropout_cuda.dropout_backward(grad_sum, p, seed), grad_sum, *of_parameters
    xp, sizes = _cuda.array_module(input), rows.sizes_of(input)
    statistics = xp.empty((int(sizes[0]), rows.STATISTICS), np.float32)
    kept = xp.empty(input.nbytes // 16, np.uint8)  # a byte for each vector
    KERNELS.launch(*launch, (*arrays, *grads, statistics, kept, *sizes, np.float32(eps), *dropout_arguments(p, seed)))
    kernel = _cuda.template("dropout_norm_backward_columns", _cuda.c_type(input.dtype))
    args = *arrays[:3], statistics, kept, np.float32(1 / (1 - p))
    return *grads, *rows.parameter_gradients(KERNELS, kernel, args, sizes, weight, bias, dtype)


def _empty_like(array):
    return _cuda.array_module(array).empty(array.shape, array.dtype)


def _choose(kernel, array, *beside):
    """Return the result of `rows.choose_registers` for a kernel above; None for rows that it does not accept."""
    takes = array.size and array.shape[-1] % BLOCK == 0
    return rows.choose_registers(kernel, array, *beside) if takes else None
