"""The epilogue of a product: scaling of int8 sums, bias, activation and residual, on the way to the output."""

from numba import types

from ...activation_names import NO_ACTIVATION, ROUGH_GELU
from ..compile import by_types, helper, inline_helper
from ..low_precision import corrected_sums
from ..pointwise import activation_function
from ..simd import first_lanes, lanes, load, load_masked, pointer, prefetch_write, store_masked
from ..simd.math import rough_gelu


@inline_helper
def epilogue_pointers(epilogue):
    """Return pointers to bias (columns,) and residual (rows, columns), each with a flag, and the activation's code.

    Absent ones are empty. Counting the references of arrays unpacked from a tuple would take 50 ns for each vector.
    """
    bias, residual, activation = epilogue
    return pointer(bias, 0), bias.size > 0, pointer(residual, 0), residual.size > 0, activation


@helper
def prefetch_tile(output, first, count, column, width):
    """Hint that `count` rows of `width` columns will be written soon."""
    for i in range(first, first + count):
        for j in range(column, column + width, lanes(output)):
            prefetch_write(output, i * output.shape[1] + j)


@by_types(inline=True)
def _value(sums, at, row, column, scaling):
    """Return a vector of sums, scaled if they are sums of bytes."""
    if isinstance(scaling, types.NoneType):
        return lambda sums, at, row, column, scaling: load(sums, at)

    def rescaled(sums, at, row, column, scaling):
        zero, step, scale, column_sums = scaling
        exact = corrected_sums(load(sums, at), zero[row], load(column_sums, column))
        return exact * (load(scale, column) * step[row])

    return rescaled


@inline_helper
def _apply_to_vector(sums, at, row, column, output, epilogue, scaling, inside):
    """Apply bias, activation and residual to a vector of sums, and write it to the output."""
    bias, has_bias, residual, has_residual, activation = epilogue
    target = row * output.shape[1] + column
    value = _value(sums, at, row, column, scaling)
    if has_bias:
        value += load_masked(bias, column, inside, 0.0)
    if activation == ROUGH_GELU:
        value = rough_gelu(value)
    elif activation != NO_ACTIVATION:
        value = activation_function(activation, value)
    if has_residual:
        value += load_masked(residual, target, inside, 0.0)
    store_masked(output, target, value, inside)


@helper
def apply_epilogue(sums, width, output, first, count, column, epilogue, scaling):
    """Apply the epilogue to `count` rows of sums, and write them to the output."""
    end = min(column + width, output.shape[1])
    full = end - (end - column) % lanes(sums)
    everywhere = first_lanes(output, lanes(output))  # a constant, for which the compiler emits plain loads and stores
    for i in range(count):
        at, row = i * width - column, first + i
        for j in range(column, full, lanes(sums)):
            _apply_to_vector(sums, at + j, row, j, output, epilogue, scaling, everywhere)
        if full < end:
            _apply_to_vector(sums, at + full, row, full, output, epilogue, scaling, first_lanes(output, end - full))
