"""Panels of packed matrices: packing, widening, int8 in groups, and products of matrices packed for one product.

A panel holds `width` columns of a (depth, columns) matrix as a contiguous (depth, width) block, in the order in which a
tile reads it. Columns beyond the matrix's last one give products that are never read.
"""

import numpy as np
from numba import types

from ..compile import by_types, helper
from ..memory import lasting_empty
from ..simd import first_lanes, lanes, load_masked, pointer, prefetch, store
from .blocks import PANEL_VECTORS, multiply
from .dot import BLOCK, BLOCK_WORDS, GROUP, GROUPS
from .tile import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, make_widening_tile, transpose_block

SUM_DEPTH = 512  # terms that are summed before they are added to the total


@helper
def pack_panel(source, column_stride, depth_stride, columns, depth, panel, width):
    """Fill a (depth, width) panel from up to `width` columns of a strided matrix."""
    for first in range(0, width, lanes(source)):
        strip = pointer(source, first * column_stride)
        pack_strip(strip, column_stride, depth_stride, columns - first, depth, pointer(panel, first), width)


@helper
def pack_strip(strip, column_stride, depth_stride, columns, depth, target, width):
    """Fill one vector's columns of a matrix with rows of `width` elements from columns of a strided matrix."""
    if column_stride == 1:
        _copy_strip(strip, depth_stride, columns, depth, target, width)
    elif depth_stride == 1 and depth >= lanes(strip):
        _transpose_strip(strip, column_stride, columns, depth, target, width)
    else:
        _copy_elements(strip, column_stride, depth_stride, columns, depth, target, width)


@helper
def _copy_strip(strip, depth_stride, columns, depth, target, width):
    mask = first_lanes(strip, columns)
    for k in range(depth):
        store(target, k * width, load_masked(strip, k * depth_stride, mask, 0.0))


@helper
def _transpose_strip(strip, column_stride, columns, depth, target, width):
    """Transpose square blocks of one vector per row; the last one overlaps the one before it."""
    for k in range(0, depth, lanes(strip)):
        at = min(k, depth - lanes(strip))
        transpose_block(pointer(strip, at), column_stride, columns - 1, pointer(target, at * width), width)


@helper
def _copy_elements(strip, column_stride, depth_stride, columns, depth, target, width):
    for k in range(depth):
        for j in range(lanes(strip)):
            target[k * width + j] = strip[j * column_stride + k * depth_stride] if j < columns else 0


@helper
def prefetch_rows(source, row, first, last, columns):
    """Hint that the rows from first to last of a matrix will be read soon."""
    for i in range(first, last):
        for j in range(0, columns, lanes(source)):
            prefetch(source, i * row + j)


@helper
def pack_rows(source, row, count, depth, panels):
    """Pack the rows of a (count, depth) matrix as the columns of panels."""
    width = PANEL_VECTORS * lanes(source)
    for i in range(0, count, width):
        prefetch_rows(source, row, i + width, min(i + 2 * width, count), depth)
        pack_panel(pointer(source, i * row), row, 1, count - i, depth, pointer(panels, i * depth), width)


@helper
def pack_columns(source, row, count, columns, panels):
    """Pack the columns of a (count, columns) matrix as those of panels."""
    width = PANEL_VECTORS * lanes(source)
    for d in range(0, columns, width):
        pack_panel(pointer(source, d), 1, row, columns - d, count, pointer(panels, d * count), width)


@helper
def multiply_panels(a, a_row, a_column, rows, panels, panel_depth, depth, columns, c, c_row, accumulate):
    """Compute c (+)= a @ b, with the first `depth` rows and `columns` columns of panels of `panel_depth` rows."""
    width = PANEL_VECTORS * lanes(a)
    for j in range(0, columns, width):
        for k in range(0, max(depth, 1), SUM_DEPTH):
            part, used = min(SUM_DEPTH, depth - k), min(columns - j, width)
            panel = pointer(panels, j * panel_depth + k * width)
            x, y, add = pointer(a, k * a_column), pointer(c, j), accumulate or k > 0
            multiply(x, a_row, a_column, rows, panel, width, part, used, y, c_row, add)


# --- panels widened ---------------------------------------------------------------------------------------------------
#
# The first tile of a task widens panels of low precision as it multiplies them, for the other tiles.
#
#     rows      panels                                                           widened to
#     float32   bfloat16 (dtype uint16), on CPUs that do not multiply it faster  float32
#     float32   int8 in groups (uint8)                                           float32
#     uint16    int8, on CPUs that multiply pairs of 16 bits (dot.py)            int16, as uint16
# A word of a panel is two wide words, as in the rows that it is multiplied with; groups are counted in blocks.

_tile = make_widening_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_row_tile = make_widening_tile(1, WEIGHT_PANEL_VECTORS)


def are_widened(a, panels):
    """Return whether these panels are widened for rows of the type of `a`."""
    beside = {types.float32: (types.uint16, types.uint8), types.uint16: (types.int8,)}
    return panels.dtype in beside.get(a.dtype, ())


def are_grouped(panels):
    return panels.dtype == types.uint8


@by_types
def words_of(a, panels, depth):
    """Return the number of words of panels for `depth` words of `a`, a multiple of BLOCK."""
    if not are_widened(a, panels):
        return lambda a, panels, depth: depth
    if are_grouped(panels):
        return lambda a, panels, depth: depth // BLOCK * BLOCK_WORDS
    return lambda a, panels, depth: depth // 2


@by_types
def depth_of(panels, words):
    """Return the number of wide words for `words` of panels."""
    if are_grouped(panels):
        return lambda panels, words: words // BLOCK_WORDS * BLOCK
    return lambda panels, words: 2 * words


@by_types
def multiply_and_widen(x, row, count, panel, depth, sums, is_added, wide, ahead, step):
    """Compute sums (+)= the product of `count` rows of x with a panel, and write the widened panel to `wide`.

    `row` and `depth` count wide words (even numbers if a word is two of them), `step` the bytes to prefetch for each,
    from `ahead` on.
    """
    per_word = 1 if are_grouped(panel) else 2

    def widen(x, row, count, panel, depth, sums, is_added, wide, ahead, step):
        width, words = WEIGHT_PANEL_VECTORS * lanes(sums), depth // per_word
        row, step = row // per_word, step * per_word
        if count > 1:
            _tile(x, row, 1, count - 1, panel, width, words, sums, width, is_added, ahead, step, wide)
        else:
            _row_tile(x, row, 1, 0, panel, width, words, sums, width, is_added, ahead, step, wide)

    return widen


# --- panels of int8 in groups -----------------------------------------------------------------------------------------
#
# 32 neighbours along the depth of a column share a scale in bfloat16. A panel is a sequence of blocks, each with the
# scales of two groups, (2, width) bfloat16, and their values, (64, width) int8: BLOCK_WORDS rows of `width` words. The
# dtype is uint8, to distinguish them from panels that are multiplied as int8.


def pack_groups(values, scale, width):
    """Return panels, (panels, words, 4 * width) uint8, of int8 values (columns, depth) and scales (columns, groups).

    Scales are bfloat16.
    """
    columns, depth = values.shape
    count, blocks = -(-columns // width), max(-(-depth // BLOCK), 1)
    panels = lasting_empty((count, blocks * BLOCK_WORDS, 4 * width), np.uint8)
    for p in range(count):
        own = slice(p * width, (p + 1) * width)
        for part, source in zip(_parts(panels[p], width), (scale.view(np.uint16), values), strict=True):
            filled = np.zeros((width, blocks * part.shape[1]), source.dtype)
            filled[: len(source[own]), : source.shape[1]] = source[own]
            part[...] = filled.T.reshape(part.shape)
    return panels


def unpack_groups(panels, columns, depth):
    """Return (values, scale) as given to `pack_groups`, the scale as uint16."""
    width = panels.shape[2] // 4
    count = len(panels)
    groups = -(-depth // GROUP)
    values, scale = np.empty((count * width, depth), np.int8), np.empty((count * width, groups), np.uint16)
    for p in range(count):
        for part, target in zip(_parts(panels[p], width), (scale, values), strict=True):
            target[p * width : (p + 1) * width] = part.reshape(-1, width).T[:, : target.shape[1]]
    return values[:columns], scale[:columns]


def _parts(panel, width):
    """Return views of a panel's scales, (blocks, 2, width) uint16, and values, (blocks, 64, width) int8."""
    blocks = panel.reshape(-1, BLOCK_WORDS * 4 * width)
    scales, values = blocks[:, : 4 * width].view(np.uint16), blocks[:, 4 * width :].view(np.int8)
    return scales.reshape(-1, GROUPS, width), values.reshape(-1, BLOCK, width)
