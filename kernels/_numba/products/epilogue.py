"""What happens to sums of a product on their way to the output: bias, activation, residual, and low precision."""

from numba import types

from ...activation_names import NO_ACTIVATION
from ..compile import by_types, helper, inline_helper
from ..low_precision import corrected_sums
from ..pointwise import activation_function
from ..simd import first_lanes, lanes, load, load_masked, pointer, prefetch_write, store_masked


@inline_helper
def finish_with(finish):
    """Bias (columns,) and residual (rows, columns), both empty if absent, and the activation's code, for `run_product`.

    Pointers instead of arrays: an array that is unpacked from a tuple is counted as a reference, 50 ns a vector.
    """
    bias, residual, activation = finish
    return pointer(bias, 0), bias.size > 0, pointer(residual, 0), residual.size > 0, activation


@helper
def prefetch_tile(output, first, count, column, width):
    """A hint that `count` rows of `width` columns will soon be written."""
    for i in range(first, first + count):
        for j in range(column, column + width, lanes(output)):
            prefetch_write(output, i * output.shape[1] + j)


@by_types(inline=True)
def _value(sums, at, row, column, levels):
    """A vector of sums as it stands, or of bytes as the levels of its row and columns say."""
    if isinstance(levels, types.NoneType):
        return lambda sums, at, row, column, levels: load(sums, at)

    def rescaled(sums, at, row, column, levels):
        zero, step, scale, column_sums = levels
        exact = corrected_sums(load(sums, at), zero[row], load(column_sums, column))
        return exact * (load(scale, column) * step[row])

    return rescaled


@inline_helper
def _finish_vector(sums, at, row, column, output, finish, levels, inside):
    """One vector of sums through bias, activation and residual to the output."""
    bias, has_bias, residual, has_residual, activation = finish
    target = row * output.shape[1] + column
    value = _value(sums, at, row, column, levels)
    if has_bias:
        value += load_masked(bias, column, inside, 0.0)
    if activation != NO_ACTIVATION:
        value = activation_function(activation, value)
    if has_residual:
        value += load_masked(residual, target, inside, 0.0)
    store_masked(output, target, value, inside)


@helper
def finish_tile(sums, width, output, first, count, column, finish, levels):
    """Send `count` rows of sums to the output."""
    end = min(column + width, output.shape[1])
    full = end - (end - column) % lanes(sums)
    everywhere = first_lanes(output, lanes(output))  # a constant: the compiler makes plain loads and stores of it
    for i in range(count):
        at, row = i * width - column, first + i
        for j in range(column, full, lanes(sums)):
            _finish_vector(sums, at + j, row, j, output, finish, levels, everywhere)
        if full < end:
            _finish_vector(sums, at + full, row, full, output, finish, levels, first_lanes(output, end - full))
