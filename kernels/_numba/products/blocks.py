"""Products of attention by tiles of vectors, and rows of scores in scratch.

A tile is at most TILE_ROWS rows and two vectors. The last rows of a product use a tile with two thirds or one third of
the rows, the last columns a tile of one vector. Products with prepared weights (products/__init__.py) have wider tiles,
which prefetch the next panel.
"""

from numba import types
from numba.extending import intrinsic

from ..compile import helper, inline_helper, isa
from ..rows import rounded_up
from ..simd import broadcast, first_lanes, itemsize, lanes, load, pointer, pointer_at, store, store_masked
from .tile import make_tile

TILE_ROWS = 12 if isa.LEVEL.registers >= 32 else 6
PANEL_VECTORS = 2  # 32 float32 with AVX-512, a divisor of usual head_dims; 12 x 2 accumulators keep two FMA units busy

_TWO_THIRDS, _THIRD = TILE_ROWS * 2 // 3, TILE_ROWS // 3
_tile_3x2, _tile_2x2, _tile_1x2 = (make_tile(rows, 2) for rows in (TILE_ROWS, _TWO_THIRDS, _THIRD))
_tile_3x1, _tile_2x1, _tile_1x1 = (make_tile(rows, 1) for rows in (TILE_ROWS, _TWO_THIRDS, _THIRD))


@intrinsic
def pointer_to_word(typingctx, source, index):
    """Point at word `index` of a pointer: a float, or two bfloat16."""
    elements = 2 if source.dtype == types.uint16 else 1

    def codegen(context, builder, sig, args):
        return builder.gep(args[0], [builder.mul(args[1], args[1].type(elements))])

    return source(source, types.intp), codegen


@helper
def multiply(a, a_row, a_column, rows, b, b_row, depth, columns, c, c_row, accumulate):
    """Compute c (+)= a @ b, tile by tile; strides and depth are in words. Whole tiles of c are written."""
    for j in range(0, columns, PANEL_VECTORS * lanes(c)):
        for i in range(0, rows, TILE_ROWS):
            x, y = pointer_to_word(a, i * a_row), pointer_to_word(b, j)
            z, last = pointer(c, i * c_row + j), min(rows - i, TILE_ROWS) - 1
            if columns - j > lanes(c):
                if last >= _TWO_THIRDS:
                    _tile_3x2(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)
                elif last >= _THIRD:
                    _tile_2x2(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)
                else:
                    _tile_1x2(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)
            elif last >= _TWO_THIRDS:
                _tile_3x1(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)
            elif last >= _THIRD:
                _tile_2x1(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)
            else:
                _tile_1x1(x, a_row, a_column, last, y, b_row, depth, z, c_row, accumulate)


# --- rows of scores ---------------------------------------------------------------------------------------------------
#
# A view is (address, stride of the batch, of the heads, of the rows), strides in elements; rows are contiguous.

SCORES = 24 * 1024  # elements of scratch for scores: 100 KB of float32
MOST_TILES = 8  # of queries at once


@inline_helper
def whole_panels(count, like):
    """Round `count` columns up to whole panels."""
    return rounded_up(count, PANEL_VECTORS * lanes(like))


@inline_helper
def rows_at_once(row):
    """Return the number of rows of `row` scores that are computed at once: whole tiles."""
    return min(max(SCORES // max(row, 1) // TILE_ROWS, 1), MOST_TILES) * TILE_ROWS


@inline_helper
def scores_size(row):
    """Return a size that suffices for `rows_at_once` of this row and of any shorter one."""
    return max(min(SCORES, MOST_TILES * TILE_ROWS * row), TILE_ROWS * row)


@inline_helper
def row_pointer(view, s, h, row, like):
    """Point at a row of a view."""
    return pointer_at(view[0] + (s * view[1] + h * view[2] + row * view[3]) * itemsize(like), like)


@inline_helper
def row_address(view, s, h, row, like):
    """Return the address of a row of an optional view, 0 if it is absent."""
    return view[0] + (s * view[1] + h * view[2] + row * view[3]) * itemsize(like) if view[0] != 0 else 0


@helper
def clear(row, first, last):
    """Write zeros from the vector after column `first` to column `last`."""
    for j in range(rounded_up(first, lanes(row)), last, lanes(row)):
        store(row, j, broadcast(row, 0.0))


@helper
def copy_scaled(source, factor, count, target):
    """Write `count` elements times `factor`; whole vectors are read."""
    full = count - count % lanes(source)
    for j in range(0, full, lanes(source)):
        store(target, j, load(source, j) * factor)
    if full < count:
        store_masked(target, full, load(source, full) * factor, first_lanes(source, count - full))
