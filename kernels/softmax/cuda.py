"""Softmax on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py.

The kernels take rows: any other axis is moved to the end and back, at the price of two copies.
"""

import numpy as np

from .. import _cuda
from .._cuda import rows as _rows

INSTANTIATIONS = (
    *_rows.instantiations("softmax"),
    *_rows.instantiations("softmax_backward"),
)
KERNELS = _cuda.Module(__file__, "softmax.cu", INSTANTIATIONS)


def softmax(input, dim):
    """Softmax of `input` along axis `dim`."""
    xp = _cuda.array_module(input)
    input = xp.ascontiguousarray(xp.moveaxis(input, dim, -1))
    output = xp.empty(input.shape, input.dtype)
    if output.size:
        width = input.shape[-1]
        name, grid, block = _rows.plan("softmax", input, output)
        KERNELS.launch(name, grid, block, (input, output, np.int64(input.size // width), np.int32(width)))
    return xp.ascontiguousarray(xp.moveaxis(output, -1, dim))


def softmax_backward(grad_output, output, dim):
    """Gradient of the softmax input from the gradient of its output and the output itself."""
    xp = _cuda.array_module(output)
    grad_output, output = (xp.ascontiguousarray(xp.moveaxis(array, dim, -1)) for array in (grad_output, output))
    grad_input = xp.empty(output.shape, output.dtype)
    if output.size:
        width = output.shape[-1]
        name, grid, block = _rows.plan("softmax_backward", output, grad_output, grad_input)
        sizes = np.int64(output.size // width), np.int32(width)
        KERNELS.launch(name, grid, block, (grad_output, output, grad_input, *sizes))
    return xp.ascontiguousarray(xp.moveaxis(grad_input, -1, dim))
