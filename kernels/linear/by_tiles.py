"""Rows and weights of low precision, multiplied by tiles: rows in strips, panels of two tiles' columns."""

from .._numba import helper
from .._numba.amx import TILE_ROWS, TILE_WORDS
from .._numba.product import finish_with
from .._numba.simd import pointer
from .._numba.tile_product import (
    PANEL_COLUMNS,
    multiply_strips_bfloat16,
    multiply_strips_int8,
    quantize_to_strips,
    round_to_strips,
)

PANEL_WORDS = PANEL_COLUMNS  # columns of a panel
DEPTH_WORDS = TILE_WORDS  # a depth is filled up to a multiple of them
ROWS = TILE_ROWS  # rows are filled up to a multiple of them


@helper
def round_rows(x, rounded, first, last):
    round_to_strips(pointer(x, 0), x.shape[1], pointer(rounded, 0), rounded.shape[1], first, last)


@helper
def run_bfloat16(rounded, panels, output, finish, counter, sums):
    words = rounded.shape[1] // 2
    multiply_strips_bfloat16(rounded, words, panels, output, finish_with(finish), None, counter, sums)


@helper
def quantize_rows(x, factors, rounded, first, last):
    levels, zeros, steps = rounded
    strips = pointer(levels, 0), pointer(zeros, 0), pointer(steps, 0)
    own = pointer(factors, 0), factors.size > 0
    quantize_to_strips(pointer(x, 0), x.shape[1], *own, strips, levels.shape[1], first, last)


@helper
def run_int8(rounded, weight, output, finish, counter, sums):
    levels, zeros, steps = rounded
    panels, scales, column_sums = weight
    by_level = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
    multiply_strips_int8(levels, levels.shape[1] // 4, panels, output, finish_with(finish), by_level, counter, sums)
