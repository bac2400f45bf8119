"""Rows and weights of low precision, multiplied by vectors: words along a row, panels as floats have them."""

from .._numba import LEVEL, helper
from .._numba.low_precision import quantize_row, round_row
from .._numba.product import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, finish_with, run_product
from .._numba.simd import pointer, wide_pointer

PANEL_WORDS = WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // 4  # columns of a panel
DEPTH_WORDS = 1  # a depth is filled up to a multiple of them
ROWS = 1  # rows are filled up to a multiple of them
GROUP_ROWS = max(WEIGHT_TILE_ROWS, LEVEL.vector_bytes // 4)  # of rows of words of 32 bits, see run_product


@helper
def round_rows(x, rounded, first, last):
    depth = rounded.shape[1]
    for i in range(first, last):
        round_row(wide_pointer(x, i * x.shape[1]), x.shape[1], pointer(rounded, i * depth), depth)


@helper
def run_bfloat16(rounded, panels, output, finish, counter, sums):
    words = rounded.shape[1] // 2
    run_product(rounded, (words, 1, words * GROUP_ROWS), panels, output, finish_with(finish), None, counter, sums)


@helper
def quantize_rows(x, factors, rounded, first, last):
    levels, zeros, steps = rounded
    depth = levels.shape[1]
    for i in range(first, last):
        row = wide_pointer(x, i * x.shape[1]), wide_pointer(factors, 0), factors.size > 0
        zeros[i], steps[i] = quantize_row(row, x.shape[1], pointer(levels, i * depth), depth)


@helper
def run_int8(rounded, weight, output, finish, counter, sums):
    levels, zeros, steps = rounded
    panels, scales, column_sums = weight
    words = levels.shape[1] // 4
    by_level = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
    strides = words, 1, words * GROUP_ROWS
    run_product(levels, strides, panels, output, finish_with(finish), by_level, counter, sums)
