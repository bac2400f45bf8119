"""The ladder of tiles that attention's products are made of, and the product of a block.

A tile is TILE_ROWS rows and two vectors at most; the last rows of a product take one of two thirds or of a third of
that, the last columns one of a single vector. Products with prepared weights have a ladder of their own (product.py),
whose tiles are wider and fetch the next panel meanwhile.
"""

from numba import types
from numba.extending import intrinsic

from . import isa
from .jit import helper
from .simd import lanes, pointer
from .tile import make_tile

TILE_ROWS = 12 if isa.LEVEL.registers >= 32 else 6
PANEL_VECTORS = 2  # 32 float32 with AVX-512: divides the usual head_dim; 12 x 2 accumulators keep two FMA units busy

_TWO_THIRDS, _THIRD = TILE_ROWS * 2 // 3, TILE_ROWS // 3
_tile_3x2, _tile_2x2, _tile_1x2 = (make_tile(rows, 2) for rows in (TILE_ROWS, _TWO_THIRDS, _THIRD))
_tile_3x1, _tile_2x1, _tile_1x1 = (make_tile(rows, 1) for rows in (TILE_ROWS, _TWO_THIRDS, _THIRD))


@intrinsic
def pointer_to_word(typingctx, source, index):
    """Points at word `index` of a pointer: a float, or two bfloat16."""
    elements = 2 if source.dtype == types.uint16 else 1

    def codegen(context, builder, sig, args):
        return builder.gep(args[0], [builder.mul(args[1], args[1].type(elements))])

    return source(source, types.intp), codegen


@helper
def multiply(a, a_row, a_column, rows, b, b_row, depth, columns, c, c_row, accumulate):
    """c (+)= a @ b, tile by tile; strides and depth are in words. Whole tiles of c are written."""
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
