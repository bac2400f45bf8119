"""Rows of attention scores in scratch, and rows of arrays with any strides, for the kernels of attention.

A view is (address, stride of the batch, of the heads, of the rows), strides in elements; rows are contiguous.
"""

from .jit import helper, inline_helper
from .ladder import PANEL_VECTORS, TILE_ROWS
from .simd import (
    broadcast,
    first_lanes,
    itemsize,
    lanes,
    load,
    pointer_at,
    store,
    store_masked,
)

SCORES = 24 * 1024  # elements of scratch for scores: 100 KB of float32
MOST_TILES = 8  # of queries at once


@inline_helper
def whole_panels(count, like):
    """`count` columns in whole panels."""
    width = PANEL_VECTORS * lanes(like)
    return (count + width - 1) // width * width


@inline_helper
def rows_at_once(row):
    """How many rows of `row` scores are computed at once: whole tiles."""
    return min(max(SCORES // max(row, 1) // TILE_ROWS, 1), MOST_TILES) * TILE_ROWS


@inline_helper
def scores_size(row):
    """Enough for `rows_at_once` of this and of any shorter row."""
    return max(min(SCORES, MOST_TILES * TILE_ROWS * row), TILE_ROWS * row)


@inline_helper
def row_pointer(view, s, h, row, like):
    """Points at a row of a view."""
    return pointer_at(view[0] + (s * view[1] + h * view[2] + row * view[3]) * itemsize(like), like)


@inline_helper
def row_address(view, s, h, row, like):
    """The address of a row of an optional view, 0 if it is absent."""
    return view[0] + (s * view[1] + h * view[2] + row * view[3]) * itemsize(like) if view[0] != 0 else 0


@helper
def clear(row, first, last):
    """Zeros from the vector after column `first` to column `last`."""
    for j in range((first + lanes(row) - 1) // lanes(row) * lanes(row), last, lanes(row)):
        store(row, j, broadcast(row, 0.0))


@helper
def copy_scaled(source, factor, count, target):
    """`count` elements times `factor`; reads whole vectors."""
    full = count - count % lanes(source)
    for j in range(0, full, lanes(source)):
        store(target, j, load(source, j) * factor)
    if full < count:
        store_masked(target, full, load(source, full) * factor, first_lanes(source, count - full))
