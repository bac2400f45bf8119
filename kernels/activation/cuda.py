"""Activation functions on CUDA: float32, float16, bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import column_sums, pointwise
from ..activation_names import activation_code

INSTANTIATIONS = (
    *pointwise.INSTANTIATIONS,
    *(f"activation_backward<{c_name}, {flag}>" for c_name in _cuda.C_TYPES.values() for flag in _cuda.FLAGS),
    *column_sums.INSTANTIATIONS,
)
KERNELS = _cuda.Module(__file__, "activation.cu", INSTANTIATIONS)


def activation(input, activation, bias):
    """The function named `activation` of input + bias; bias runs over the last axis or is None."""
    return pointwise.launch(KERNELS, activation, input, bias)


def activation_backward(grad_output, input, activation, bias):
    """(grad_input, grad_bias or None); the bias's is the sum of the rounded gradients of the input."""
    xp = _cuda.array_module(input)
    grad_input = xp.empty(input.shape, input.dtype)
    grad_output, input = xp.ascontiguousarray(grad_output), xp.ascontiguousarray(input)
    width = 1 if bias is None else bias.size
    if grad_input.size:
        shifts = None if bias is None else xp.ascontiguousarray(bias)
        numbers = np.int64(input.size), np.uint32(width), np.int32(activation_code(activation))
        flag = _cuda.FLAGS[_cuda.is_whole(input.size, input, grad_output, grad_input)]
        kernel = f"activation_backward<{_cuda.c_type(input.dtype)}, {flag}>"
        blocks = pointwise.blocks(input, 1)
        KERNELS.launch(kernel, (blocks,), (pointwise.THREADS,), (grad_output, input, shifts, grad_input, *numbers))
    if bias is None:
        return grad_input, None
    return grad_input, column_sums.launch(KERNELS, grad_input.reshape(input.size // max(width, 1), width), input.dtype)
