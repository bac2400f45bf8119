"""What happens to sums of a product on their way to the output: bias, activation, residual, and low precision."""

from numba import types

from ...activation_names import NO_ACTIVATION
from ..compile import by_types, helper, inline_helper
from ..low_precision import corrected_sums, store_bfloat16
from ..low_precision.rounded_rows import place_of_sums
from ..pointwise import activation_function
from ..simd import first_lanes, lanes, load, load_masked, pointer, prefetch_write, store_masked


@inline_helper
def finish_with(finish):
    """Bias (columns,) and residual (rows, columns), both empty if absent, the activation's code and None or
    `handed_sums`, for `run_product`.

    Pointers instead of arrays: an array that is unpacked from a tuple is counted as a reference, 50 ns a vector.
    """
    bias, residual, activation, handed = finish
    return pointer(bias, 0), bias.size > 0, pointer(residual, 0), residual.size > 0, activation, handed


@helper
def prefetch_tile(output, first, count, column, width):
    """A hint that `count` rows of `width` columns will soon be written."""
    for i in range(first, first + count):
        for j in range(column, column + width, lanes(output)):
            prefetch_write(output, i * output.shape[1] + j)


@by_types(inline=True)
def are_handed(handed, column):
    """Whether the output from a column on is written in bfloat16, too."""
    if isinstance(handed, types.NoneType):
        return lambda handed, column: False
    return lambda handed, column: handed[5] and column >= handed[4]


@by_types(inline=True)
def _are_alone(handed, column):
    """Whether it is written in bfloat16 only."""
    if isinstance(handed, types.NoneType):
        return lambda handed, column: False
    return lambda handed, column: handed[6] and column >= handed[4]


@inline_helper
def prefetch_output(output, first, count, column, width, finish):
    """A hint that `count` rows of `width` columns will soon be written, as float32 or in bfloat16."""
    handed = finish[5]
    if not _are_alone(handed, column):
        prefetch_tile(output, first, count, column, width)
    if are_handed(handed, column):
        for i in range(first, first + count):
            place = _place(handed, i, column)
            for j in range(0, width, lanes(output)):
                _prefetch_place(handed, place + j)


@by_types(inline=True)
def _place(handed, row, column):
    """`place_of_sums`, if it is asked for."""
    if isinstance(handed, types.NoneType):
        return lambda handed, row, column: 0
    return lambda handed, row, column: place_of_sums(handed, row, column)


@by_types(inline=True)
def _prefetch_place(handed, place):
    if isinstance(handed, types.NoneType):
        return lambda handed, place: None
    return lambda handed, place: prefetch_write(handed[0], place)


@by_types(inline=True)
def _hand(handed, place, value, inside):
    """Write a vector in bfloat16."""
    if isinstance(handed, types.NoneType):
        return lambda handed, place, value, inside: None
    return lambda handed, place, value, inside: store_bfloat16(handed[0], place, value, inside)


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
def _finish_vector(sums, at, row, column, output, finish, levels, place, inside):
    """One vector of sums through bias, activation and residual to the output; `place` is (whether it is written in
    bfloat16, whether it alone is, where)."""
    bias, has_bias, residual, has_residual, activation, handed = finish
    target = row * output.shape[1] + column
    value = _value(sums, at, row, column, levels)
    if has_bias:
        value += load_masked(bias, column, inside, 0.0)
    if activation != NO_ACTIVATION:
        value = activation_function(activation, value)
    if has_residual:
        value += load_masked(residual, target, inside, 0.0)
    if not place[1]:
        store_masked(output, target, value, inside)
    if place[0]:
        _hand(handed, place[2], value, inside)


@helper
def finish_tile(sums, width, output, first, count, column, finish, levels):
    """Send `count` rows of sums to the output."""
    end = min(column + width, output.shape[1])
    full = end - (end - column) % lanes(sums)
    everywhere = first_lanes(output, lanes(output))  # a constant: the compiler makes plain loads and stores of it
    handed = finish[5]
    is_handed, is_alone = are_handed(handed, column), _are_alone(handed, column)
    for i in range(count):
        at, row = i * width - column, first + i
        start = _place(handed, row, column) - column if is_handed else 0
        for j in range(column, full, lanes(sums)):
            place = is_handed, is_alone, start + j
            _finish_vector(sums, at + j, row, j, output, finish, levels, place, everywhere)
        if full < end:
            place, inside = (is_handed, is_alone, start + full), first_lanes(output, end - full)
            _finish_vector(sums, at + full, row, full, output, finish, levels, place, inside)
