"""Rows rounded to low precision as products with prepared weights read them: one after the other, or strips of tiles.

A strip is 16 rows, cut along the depth into tiles of 1 KB, one after the other (tile_product.py). Both have their depth
filled up, bfloat16 with zeros: to whole words, for tiles to whole tiles, and rows to whole strips, with anything.
"""

from typing import NamedTuple

import numpy as np

from ..amx.tiles import TILE_ROWS, TILE_WORDS
from ..compile import helper, inline_helper, isa
from ..simd import pointer, wide_pointer
from . import LEVELS, ROUNDED, round_row, row_scale, store_levels

ROWS, DEPTH_WORDS = (TILE_ROWS, TILE_WORDS) if isa.LEVEL.tiles else (1, 1)  # both are filled up to multiples of these
_TILED = isa.LEVEL.tiles is not None


class RoundedRows(NamedTuple):
    """The arrays of rounded rows: the rows, and of bytes the zero and the step of each."""

    rows: object
    zeros: object
    steps: object


def whole_depth(width: int, per_word: int) -> int:
    """The elements of a rounded row of `width`, of which a word has so many."""
    size = per_word * DEPTH_WORDS
    return max(-(-width // size), 1) * size


def rows_of_bfloat16(empty, rows: int, width: int) -> RoundedRows:
    """Room for rows; `empty(shape, dtype)` gives an array."""
    return RoundedRows(empty((-(-rows // ROWS) * ROWS, whole_depth(width, 2)), ROUNDED), None, None)


def rows_of_bytes(empty, rows: int, width: int) -> RoundedRows:
    levels = empty((-(-rows // ROWS) * ROWS, whole_depth(width, 4)), LEVELS)
    return RoundedRows(levels, empty((rows,), np.int32), empty((rows,), np.float32))


# --- for compiled code ----------------------------------------------------------------------------


@inline_helper
def _place(i, k, depth, per_tile):
    """Where element k of row i lies in strips; `depth` and `per_tile`, of a tile's row, in elements."""
    inside = k % per_tile
    return i // TILE_ROWS * TILE_ROWS * depth + (k - inside) * TILE_ROWS + i % TILE_ROWS * per_tile + inside


@helper
def round_row_to(source, width, rounded, depth, i):
    """A row of float32 at a pointer as row i of bfloat16."""
    if _TILED:
        per_tile = 2 * TILE_WORDS
        for k in range(0, depth, per_tile):
            target = pointer(rounded, _place(i, k, depth, per_tile))
            round_row(pointer(source, k), min(width - k, per_tile), target, per_tile)
    else:
        round_row(wide_pointer(source, 0), width, pointer(rounded, i * depth), depth)


@helper
def quantize_row_to(source, width, factors, has_factors, levels, zeros, steps, depth, i):
    """A row of float32 at a pointer, times the factors if there are some, as row i of levels; its zero and step."""
    whole = wide_pointer(source, 0), wide_pointer(factors, 0), has_factors
    inverse, zero, steps[i] = row_scale(whole, width)
    zeros[i] = np.int32(zero)
    if _TILED:
        per_tile = 4 * TILE_WORDS
        for k in range(0, depth, per_tile):
            part = pointer(source, k), pointer(factors, k), has_factors
            target = pointer(levels, _place(i, k, depth, per_tile))
            store_levels(part, min(width - k, per_tile), inverse, zero, target, per_tile)
    else:
        store_levels(whole, width, inverse, zero, pointer(levels, i * depth), depth)
