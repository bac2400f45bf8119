"""Launching the norms of rows (norms.cuh)."""

import numpy as np

from . import array_module, rows

INSTANTIATIONS = rows.instantiations("norm_rows", "norm_long_rows")


def launch(module, input, weight, bias, eps, residual, centred):
    """The rows of input + residual over their deviation, from their mean if `centred`, times weight, plus bias."""
    xp = array_module(input)
    input, residual, weight, bias = (
        None if array is None else xp.ascontiguousarray(array) for array in (input, residual, weight, bias)
    )
    output = xp.empty(input.shape, input.dtype)
    if output.size == 0:
        return output
    width = input.shape[-1]
    name, grid, block = rows.plan("norm_rows", "norm_long_rows", input)
    sizes = np.int64(input.size // width), np.int32(width), np.float32(eps), np.bool_(centred)
    module.launch(name, grid, block, (input, residual, weight, bias, output, *sizes))
    return output
