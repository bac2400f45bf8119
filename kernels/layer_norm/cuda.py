"""Layer norm on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda import rows as _rows

KERNELS = _cuda.Module(__file__, "layer_norm.cu", _rows.instantiations("layer_norm_rows", "layer_norm_long_rows"))


def layer_norm(input, weight, bias, eps, residual):
    """Layer norm of (..., width); weight and bias are (width,) or None, residual has the shape of input or is None."""
    xp = _cuda.array_module(input)
    input, residual, weight, bias = (
        None if array is None else xp.ascontiguousarray(array) for array in (input, residual, weight, bias)
    )
    output = xp.empty(input.shape, input.dtype)
    if output.size == 0:
        return output
    width = input.shape[-1]
    name, grid, block = _rows.plan("layer_norm_rows", "layer_norm_long_rows", input)
    args = (input, residual, weight, bias, output, np.int64(input.size // width), np.int32(width), np.float32(eps))
    KERNELS.launch(name, grid, block, args)
    return output
