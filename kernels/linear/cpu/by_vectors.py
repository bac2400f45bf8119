"""Rows and weights of low precision, multiplied by vectors: words along a row, panels as floats have them."""

from ..._numba import LEVEL, helper
from ..._numba.compile.isa import has_pair_dot
from ..._numba.products import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, run_product
from ..._numba.products.epilogue import finish_with
from ..._numba.simd import pointer

PANEL_WORDS = WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // 4  # columns of a panel
GROUP_ROWS = max(WEIGHT_TILE_ROWS, LEVEL.vector_bytes // 4)  # of rows of words of 32 bits, see run_product

_LEVELS_PER_WORD = 2 if has_pair_dot() else 4  # two where panels are widened to pairs


@helper
def run_bfloat16(rounded, panels, output, finish, counter, sums):
    words = rounded.shape[1] // 2
    run_product(rounded, (words, 1, words * GROUP_ROWS), panels, output, finish_with(finish), None, counter, sums)


@helper
def run_int8(rounded, weight, output, finish, counter, sums):
    levels, zeros, steps = rounded
    panels, scales, column_sums = weight
    words = levels.shape[1] // _LEVELS_PER_WORD
    by_level = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
    strides = words, 1, words * GROUP_ROWS
    run_product(levels, strides, panels, output, finish_with(finish), by_level, counter, sums)
