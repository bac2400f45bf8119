"""Gated activation on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.vectors import vector_of_row_plan
from ..activation_names import activation_code

NAMES = ("gated_activation", "gated_activation_backward")
INSTANTIATIONS = tuple(
    f"{name}<{c_name}, {flag}>" for name in NAMES for c_name in _cuda.C_TYPES.values() for flag in _cuda.FLAGS
)
KERNELS = _cuda.Module(__file__, "gated_activation.cu", INSTANTIATIONS)


def gated_activation(input, activation, gate):
    """(..., 2 * width) to (..., width)."""
    output = _cuda.array_module(input).empty((*input.shape[:-1], input.shape[-1] // 2), input.dtype)
    _launch("gated_activation", (input, output), output, activation, gate)
    return output


def gated_activation_backward(grad_output, input, activation, gate):
    """The gradient of the (..., 2 * width) input."""
    grad_input = _cuda.array_module(input).empty(input.shape, input.dtype)
    _launch("gated_activation_backward", (grad_output, input, grad_input), grad_output, activation, gate)
    return grad_input


def _launch(kernel, arrays, halves, activation, gate):
    """`halves`: an array of the output's shape. The arrays but the last, which is written, may have any strides."""
    if halves.size == 0:
        return
    xp, width = _cuda.array_module(halves), halves.shape[-1]
    rows = halves.size // width
    sizes = np.int64(rows), np.int32(width), np.int32(activation_code(activation)), np.bool_(gate == "first")
    arrays = *map(xp.ascontiguousarray, arrays[:-1]), arrays[-1]
    name = f"{kernel}<{_cuda.c_type(halves.dtype)}, {_cuda.FLAGS[_cuda.is_whole(width, *arrays)]}>"
    KERNELS.launch(name, *vector_of_row_plan(rows, width, halves.itemsize), (*arrays, *sizes))
