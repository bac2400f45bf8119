"""Panels, and products of matrices small enough to be packed on the spot (attention's).

A panel holds `width` columns of a (depth, columns) matrix as a contiguous (depth, width) block: what a tile reads next
lies next in memory. Columns beyond the matrix's last one give products that are never read.
"""

from ..compile import helper
from ..simd import first_lanes, lanes, load_masked, pointer, prefetch, store
from .blocks import PANEL_VECTORS, multiply
from .tile import transpose_block

SUM_DEPTH = 512  # terms of a sum that are added up before they join the total


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
    """Blocks of a whole vector each way; the last one overlaps the one before, and the last column stands in."""
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
    """A hint that the rows from first to last of a matrix will soon be read."""
    for i in range(first, last):
        for j in range(0, columns, lanes(source)):
            prefetch(source, i * row + j)


@helper
def pack_rows(source, row, count, depth, panels):
    """Panels of which each column is one of the `count` rows of a (count, depth) matrix."""
    width = PANEL_VECTORS * lanes(source)
    for i in range(0, count, width):
        prefetch_rows(source, row, i + width, min(i + 2 * width, count), depth)
        pack_panel(pointer(source, i * row), row, 1, count - i, depth, pointer(panels, i * depth), width)


@helper
def pack_columns(source, row, count, columns, panels):
    """Panels of the columns of a (count, columns) matrix."""
    width = PANEL_VECTORS * lanes(source)
    for d in range(0, columns, width):
        pack_panel(pointer(source, d), 1, row, columns - d, count, pointer(panels, d * count), width)


@helper
def multiply_panels(a, a_row, a_column, rows, panels, panel_depth, depth, columns, c, c_row, accumulate):
    """c (+)= a @ b for b in panels of panel_depth, of which the first `depth` rows and `columns` columns are used."""
    width = PANEL_VECTORS * lanes(a)
    for j in range(0, columns, width):
        for k in range(0, max(depth, 1), SUM_DEPTH):
            part, used = min(SUM_DEPTH, depth - k), min(columns - j, width)
            panel = pointer(panels, j * panel_depth + k * width)
            x, y, add = pointer(a, k * a_column), pointer(c, j), accumulate or k > 0
            multiply(x, a_row, a_column, rows, panel, width, part, used, y, c_row, add)
