"""Launching kernels over rows: variants (rows.cuh), sums down columns (column_sums.cuh), norms (norms.cuh).

A kernel over rows comes as a pair of templates: NAME_rows<T, GROUP, ITEMS> keeps an aligned row of up to GROUP * ITEMS
elements in the registers of GROUP threads, NAME_any_rows<T, GROUP> accepts any rows and reads them more than once.
"""

import numpy as np

from . import (
    C_TYPES,
    array_module,
    c_type,
    contiguous,
    device,
    instantiations,
    is_whole,
    row_stride,
    template,
    unit_columns,
)

# (GROUP, ITEMS). A row of up to 1024 elements has one warp, which waits for no other.
REGISTER_SHAPES = (*((32, items) for items in (8, 16, 24, 32)), *((128, items) for items in (16, 24, 32)))
REGISTER_THREADS = 128  # of a block
ANY_GROUPS = (32, 512)
WARP_WIDTH = 1024


def row_kernels(kernel):
    """Return the name expressions of a kernel pair."""
    return *register_kernels(kernel), *instantiations(f"{kernel}_any_rows", ANY_GROUPS)


def register_kernels(kernel):
    """Return the name expressions of the template for aligned rows."""
    return tuple(template(f"{kernel}_rows", c_name, *shape) for c_name in C_TYPES.values() for shape in REGISTER_SHAPES)


def choose(kernel, array, *beside):
    """Return (name expression, grid, block) for the rows of a contiguous, non-empty (..., width) array.

    `beside`: the kernel's other arrays that are read by the same rows or columns, or None.
    """
    aligned = choose_registers(kernel, array, *beside)
    if aligned is not None:
        return aligned
    width = array.shape[-1]
    group = ANY_GROUPS[width > WARP_WIDTH]
    threads = max(REGISTER_THREADS, group)
    blocks = -(-(array.size // width) * group // threads)
    return template(f"{kernel}_any_rows", c_type(array.dtype), group), (blocks,), (threads,)


def choose_registers(kernel, array, *beside):
    """Return the result of `choose` for aligned rows alone; None if rows are not aligned, or too long."""
    width = array.shape[-1]
    shape = next((shape for shape in REGISTER_SHAPES if width <= shape[0] * shape[1]), None)
    if shape is None or not is_whole(width, array, *beside):
        return None
    group, items = shape
    resident = device().multiprocessors * (3 if items > 24 else 4)  # ROW_BLOCKS in rows.cuh
    blocks = min(-(-(array.size // width) * group // REGISTER_THREADS), resident)
    return template(f"{kernel}_rows", c_type(array.dtype), *shape), (blocks,), (REGISTER_THREADS,)


# ---- sums down columns -----------------------------------------------------------------------------------------------

COLUMNS, LANES, CHUNK = 32, 8, 128  # as in column_sums.cuh
COLUMN_BLOCK = (COLUMNS, LANES)
FINAL_SUMS = tuple(template("sum_columns", "float", c_name) for c_name in C_TYPES.values())
COLUMN_SUMS = tuple(dict.fromkeys((*FINAL_SUMS, *instantiations("sum_columns", ["float"]))))


def column_grid(rows, width):
    """Return the grid of a kernel that sums chunks of CHUNK rows."""
    return -(-rows // CHUNK), -(-width // COLUMNS)


def sum_columns(module, rows, dtype):
    """Return the sums, (width,) of `dtype`, of a (rows, width) array over its rows."""
    xp = array_module(rows)
    count, width = rows.shape
    if not width or not count:
        return xp.zeros(width, dtype)
    grid, rows = column_grid(count, width), unit_columns(xp, rows)
    partials = xp.empty((grid[0], width), np.float32)
    args = (rows, partials, np.int64(row_stride(rows)), np.int64(count), np.int32(width), np.int64(CHUNK))
    module.launch(template("sum_columns", c_type(rows.dtype), "float"), grid, COLUMN_BLOCK, args)
    return sum_partials(module, partials, dtype)


def sum_partials(module, partials, dtype):
    """Return the sums, (width,) of `dtype`, of (chunks, width) float32 partial sums, added in their order."""
    chunks, width = partials.shape
    output = array_module(partials).empty(width, dtype)
    args = (partials, output, np.int64(width), np.int64(chunks), np.int32(width), np.int64(chunks))
    module.launch(template("sum_columns", "float", c_type(dtype)), column_grid(1, width), COLUMN_BLOCK, args)
    return output


# ---- norms -----------------------------------------------------------------------------------------------------------

NORMS = (
    *(name for kernel in ("norm", "norm_backward") for name in row_kernels(kernel)),
    *instantiations("norm_backward_columns"),
    *FINAL_SUMS,
)
STATISTICS = 3  # floats of a RowStatistics


def sizes_of(array):
    """Return the number of rows and the width of a (..., width) array, as arguments of a kernel."""
    width = array.shape[-1]
    return np.int64(array.size // width), np.int32(width)


def norm(module, input, weight, bias, eps, residual, centred):
    """Return rows of input + residual over their deviation, from their mean if `centred`, times weight, plus bias."""
    arrays = input, residual, weight, bias = contiguous(input, residual, weight, bias)
    output = array_module(input).empty(input.shape, input.dtype)
    if output.size:
        launch = choose("norm", *arrays, output)
        module.launch(*launch, (*arrays, output, *sizes_of(input), np.float32(eps), np.bool_(centred)))
    return output


def norm_backward(module, grad_output, input, weight, bias, eps, residual, centred, parameter_dtype):
    """Return (grad_input, grad_weight, grad_bias), the last two in `parameter_dtype`, or None if absent."""
    xp, dtype = array_module(input), input.dtype
    grad_output, input, residual, weight = contiguous(grad_output, input, residual, weight)
    grad_input, width = xp.empty(input.shape, dtype), input.shape[-1]
    if input.size == 0:
        return grad_input, *(None if array is None else xp.zeros(width, parameter_dtype) for array in (weight, bias))
    sizes = sizes_of(input)
    statistics = xp.empty((int(sizes[0]), STATISTICS), np.float32)
    launch = choose("norm_backward", input, grad_output, residual, weight, grad_input)
    args = grad_output, input, residual, weight, grad_input, statistics, *sizes, np.float32(eps), np.bool_(centred)
    module.launch(*launch, args)
    kernel, args = template("norm_backward_columns", c_type(dtype)), (grad_output, input, residual, statistics)
    return grad_input, *parameter_gradients(module, kernel, args, sizes, weight, bias, parameter_dtype)


def parameter_gradients(module, kernel, args, sizes, weight, bias, dtype):
    """Return (grad_weight, grad_bias), None for absent ones; `kernel` sums chunks of rows (norms_backward.cuh)."""
    if weight is None and bias is None:
        return None, None
    grid = column_grid(*map(int, sizes))
    sums = array_module(args[0]).empty((grid[0], 2 * int(sizes[1])), np.float32)
    module.launch(kernel, grid, COLUMN_BLOCK, (*args[:4], sums, *sizes, *args[4:]))
    grads = sum_partials(module, sums, dtype).reshape(2, -1)
    return tuple(None if array is None else grad for array, grad in zip((weight, bias), grads, strict=True))
