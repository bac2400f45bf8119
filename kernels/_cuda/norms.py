"""Launching the norms of rows (norms.cuh) and their gradients (norms_backward.cuh)."""

import numpy as np

from . import C_TYPES, array_module, c_type, column_sums, rows

INSTANTIATIONS = (
    *rows.instantiations("norm"),
    *rows.instantiations("norm_backward"),
    *(f"norm_backward_columns<{c_name}>" for c_name in C_TYPES.values()),
    *column_sums.FINAL,
)
STATISTICS = 3  # floats of a RowStatistics


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
    name, grid, block = rows.plan("norm", input, residual, weight, bias, output)
    sizes = np.int64(input.size // width), np.int32(width), np.float32(eps), np.bool_(centred)
    module.launch(name, grid, block, (input, residual, weight, bias, output, *sizes))
    return output


def launch_backward(module, grad_output, input, weight, bias, eps, residual, centred, parameter_dtype):
    """(grad_input, grad_weight or None, grad_bias or None), the last two in `parameter_dtype`; that of an absent weight
    or bias is None."""
    xp, dtype = array_module(input), input.dtype
    grad_output, input, residual, weight = (
        None if array is None else xp.ascontiguousarray(array) for array in (grad_output, input, residual, weight)
    )
    grad_input, width = xp.empty(input.shape, dtype), input.shape[-1]
    if input.size == 0:
        return grad_input, *(None if array is None else xp.zeros(width, parameter_dtype) for array in (weight, bias))
    sizes = np.int64(input.size // width), np.int32(width)
    statistics = xp.empty((int(sizes[0]), STATISTICS), np.float32)
    name, grid, block = rows.plan("norm_backward", input, grad_output, residual, weight, grad_input)
    args = grad_output, input, residual, weight, grad_input, statistics, *sizes, np.float32(eps), np.bool_(centred)
    module.launch(name, grid, block, args)
    kernel, args = f"norm_backward_columns<{c_type(dtype)}>", (grad_output, input, residual, statistics)
    return grad_input, *parameter_gradients(module, kernel, args, sizes, weight, bias, parameter_dtype)


def parameter_gradients(module, kernel, args, sizes, weight, bias, dtype):
    """(grad_weight or None, grad_bias or None); `kernel` sums chunks of rows (sum_parameters in norms_backward.cuh)."""
    if weight is None and bias is None:
        return None, None
    grid = column_sums.grid(*map(int, sizes))
    sums = array_module(args[0]).empty((grid[0], 2 * int(sizes[1])), np.float32)
    module.launch(kernel, grid, column_sums.BLOCK, (*args[:4], sums, *sizes, *args[4:]))
    grads = column_sums.finish(module, sums, dtype).reshape(2, -1)
    return tuple(None if array is None else grad for array, grad in zip((weight, bias), grads, strict=True))
