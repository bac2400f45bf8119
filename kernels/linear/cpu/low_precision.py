"""Products of rows with weights in bfloat16 and int8, on tiles or in vectors, and the rounding of the rows.

For tiles, rows are stored in strips, and panels are as wide as two tiles. For vectors, rows follow one another in words
of 32 bits, and panels are as wide as those of float32.
"""

from ..._numba import LEVEL, helper, inline_helper
from ..._numba.compile.isa import WORD_BYTES, has_pair_dot
from ..._numba.low_precision import STRIP_ROWS, quantize_row_to, round_row_to
from ..._numba.products import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, run_product
from ..._numba.products.epilogue import epilogue_pointers
from ..._numba.simd import pointer

GROUP_ROWS = max(WEIGHT_TILE_ROWS, LEVEL.vector_bytes // 4)  # of rows of words, see run_product
_LEVELS_PER_WORD = 2 if has_pair_dot() else WORD_BYTES  # two if panels are widened to pairs


@helper
def round_rows(x, rounded, first, last):
    for i in range(first, last):
        round_row_to(pointer(x, i * x.shape[1]), x.shape[1], pointer(rounded, 0), rounded.shape[1], i)


@helper
def quantize_rows(x, factors, rounded, first, last):
    levels, zeros, steps = rounded
    target = pointer(levels, 0), pointer(zeros, 0), pointer(steps, 0), levels.shape[1]
    for i in range(first, last):
        quantize_row_to(pointer(x, i * x.shape[1]), x.shape[1], pointer(factors, 0), factors.size > 0, *target, i)


if LEVEL.tiles:
    from ..._numba.amx.product import PANEL_COLUMNS, multiply_strips_bfloat16, multiply_strips_int8

    PANEL_WORDS = PANEL_COLUMNS  # in a row of a panel, one for each column

    @helper
    def run_bfloat16(rounded, panels, output, epilogue, counter, sums):
        words, epilogue = rounded.shape[1] // 2, epilogue_pointers(epilogue)
        multiply_strips_bfloat16(rounded, words, panels, output, epilogue, None, counter, sums)

    @helper
    def run_int8(rounded, weight, output, epilogue, counter, sums):
        levels, zeros, steps = rounded
        panels, scales, column_sums = weight
        scaling = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
        multiply_strips_int8(
            levels, levels.shape[1] // 4, panels, output, epilogue_pointers(epilogue), scaling, counter, sums
        )

else:
    PANEL_WORDS = WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // 4

    @inline_helper
    def _strides(words):
        """Return the strides for `run_product` of rounded rows with this number of words."""
        if STRIP_ROWS > 1:
            return 1, GROUP_ROWS, words * GROUP_ROWS
        return words, 1, words * GROUP_ROWS

    @helper
    def run_bfloat16(rounded, panels, output, epilogue, counter, sums):
        strides = _strides(rounded.shape[1] // (WORD_BYTES // 2))
        run_product(rounded, strides, panels, output, epilogue_pointers(epilogue), None, counter, sums)

    @helper
    def run_int8(rounded, weight, output, epilogue, counter, sums):
        levels, zeros, steps = rounded
        panels, scales, column_sums = weight
        scaling = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
        strides = _strides(levels.shape[1] // _LEVELS_PER_WORD)
        run_product(levels, strides, panels, output, epilogue_pointers(epilogue), scaling, counter, sums)
