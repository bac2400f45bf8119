"""Rows and weights of low precision, multiplied by tiles: rows in strips, panels of two tiles' columns."""

from ..._numba import helper
from ..._numba.amx.product import PANEL_COLUMNS, multiply_strips_bfloat16, multiply_strips_int8
from ..._numba.products.epilogue import finish_with
from ..._numba.simd import pointer

PANEL_WORDS = PANEL_COLUMNS  # columns of a panel


@helper
def run_bfloat16(rounded, panels, output, finish, counter, sums):
    words = rounded.shape[1] // 2
    multiply_strips_bfloat16(rounded, words, panels, output, finish_with(finish), None, counter, sums)


@helper
def run_int8(rounded, weight, output, finish, counter, sums):
    levels, zeros, steps = rounded
    panels, scales, column_sums = weight
    by_level = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
    multiply_strips_int8(levels, levels.shape[1] // 4, panels, output, finish_with(finish), by_level, counter, sums)
