"""Softmax on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py.

The kernels compute rows: any other axis is moved to the end and back, which takes two copies.
"""

from .. import _cuda
from .._cuda import rows

KERNELS = _cuda.Source(__file__, "softmax.cu", (*rows.row_kernels("softmax"), *rows.row_kernels("softmax_backward")))


def softmax(input, dim):
    """Return the softmax of `input` along axis `dim`."""
    return _launch("softmax", dim, input)


def softmax_backward(grad_output, output, dim):
    """Return the gradient of the softmax input from the gradient of its output and the output itself."""
    return _launch("softmax_backward", dim, grad_output, output)


def _launch(kernel, dim, *arrays):
    xp = _cuda.array_module(arrays[-1])
    arrays = [xp.ascontiguousarray(xp.moveaxis(array, dim, -1)) for array in arrays]
    result = xp.empty(arrays[-1].shape, arrays[-1].dtype)
    if result.size:
        KERNELS.launch(*rows.choose(kernel, result, *arrays), (*arrays, result, *rows.sizes_of(result)))
    return xp.ascontiguousarray(xp.moveaxis(result, -1, dim))
