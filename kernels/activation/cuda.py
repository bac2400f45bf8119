"""Activation functions on CUDA: float32, float16, bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import elements, rows
from ..activation_names import activation_code

INSTANTIATIONS = (*elements.POINTWISE, *_cuda.instantiations("activation_backward", _cuda.FLAGS), *rows.COLUMN_SUMS)
KERNELS = _cuda.Source(__file__, "activation.cu", INSTANTIATIONS)


def activation(input, activation, bias):
    """Apply the function named `activation` to input + bias; bias is along the last axis or None."""
    return elements.launch_pointwise(KERNELS, activation, input, bias)


def activation_backward(grad_output, input, activation, bias):
    """Return (grad_input, grad_bias or None); grad_bias is the sum of the rounded gradients of the input."""
    grad_input = _cuda.array_module(input).empty(input.shape, input.dtype)
    grad_output, input, shifts = _cuda.contiguous(grad_output, input, bias)
    width = 1 if bias is None else bias.size
    if grad_input.size:
        numbers = np.int64(input.size), np.uint32(width), np.int32(activation_code(activation))
        is_whole = _cuda.is_whole(input.size, input, grad_output, grad_input)
        kernel = _cuda.template("activation_backward", _cuda.c_type(input.dtype), is_whole)
        grid, block = (elements.blocks(input, 1),), (elements.THREADS,)
        KERNELS.launch(kernel, grid, block, (grad_output, input, shifts, grad_input, *numbers))
    if bias is None:
        return grad_input, None
    return grad_input, rows.sum_columns(KERNELS, grad_input.reshape(input.size // max(width, 1), width), input.dtype)
