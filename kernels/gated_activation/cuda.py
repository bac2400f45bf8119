"""Gated activation on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import vector_grid
from .._cuda.rows import sizes_of
from ..activation_names import activation_code

INSTANTIATIONS = (
    *_cuda.instantiations("gated_activation", _cuda.FLAGS),
    *_cuda.instantiations("gated_activation_backward", _cuda.FLAGS),
)
KERNELS = _cuda.Source(__file__, "gated_activation.cu", INSTANTIATIONS)


def gated_activation(input, activation, gate):
    """Return (..., width) of a (..., 2 * width) input."""
    output = _cuda.array_module(input).empty((*input.shape[:-1], input.shape[-1] // 2), input.dtype)
    _launch("gated_activation", (input, output), output, activation, gate)
    return output


def gated_activation_backward(grad_output, input, activation, gate):
    """Return the gradient of the (..., 2 * width) input."""
    grad_input = _cuda.array_module(input).empty(input.shape, input.dtype)
    _launch("gated_activation_backward", (grad_output, input, grad_input), grad_output, activation, gate)
    return grad_input


def _launch(kernel, arrays, halves, activation, gate):
    """Launch over `arrays`, the last of them written, the others of any strides; `halves` has the output's shape."""
    if halves.size == 0:
        return
    width, arrays = halves.shape[-1], (*_cuda.contiguous(*arrays[:-1]), arrays[-1])
    numbers = *sizes_of(halves), np.int32(activation_code(activation)), np.bool_(gate == "first")
    name = _cuda.template(kernel, _cuda.c_type(halves.dtype), _cuda.is_whole(width, *arrays))
    KERNELS.launch(name, *vector_grid(halves.size // width, width, halves.itemsize), (*arrays, *numbers))
