"""The gradient of a weight on the CPU: grad_output.T @ input, a sum over rows.

Both matrices are read a chunk of rows at a time, in memory order: the input's chunk is written to panels, a strip of
grad_output's chunk to groups of columns that fill a cache line, and tiles of the two add to the output. A task computes
some rows of the output and writes its own panels, with few enough columns to stay in a cache. The order of an element's
sum depends only on the number of rows. Packing both matrices as a whole would be slower: their rows would be read in
pieces, panel by panel, and a panel of 768 rows does not fit in the first-level cache.

The gradient of the bias, the sums of the columns of grad_output, is computed from the rows before they are written.
"""

import numpy as np

from ..._numba import LEVEL, as_kernel_array, empty, helper, inline_helper, num_threads, parallel_kernel
from ..._numba.memory import CACHE_LINE
from ..._numba.products.epilogue import prefetch_tile
from ..._numba.products.tile import COLUMN_PANEL_VECTORS, COLUMN_TILE_ROWS, make_tile
from ..._numba.rows import BLOCK_ROWS, rounded_up, share
from ..._numba.simd import (
    aligned,
    broadcast,
    first_lanes,
    itemsize,
    lanes,
    load,
    load_masked,
    pointer,
    store,
    store_masked,
    wide_pointer,
)

CHUNK_ROWS = 3 * BLOCK_ROWS  # a panel, a group and a tile of the output fit in 32 KB
STRIP = 64  # columns of grad_output
# Elements of the output that are summed before the next ones, so that they stay in a cache.
PART = 1 << (20 if LEVEL.vector_bytes >= 64 else 18)
PART_COLUMNS = 768  # more would leave a part so few rows that writing panels takes a fifth of the time

_tile = make_tile(COLUMN_TILE_ROWS, COLUMN_PANEL_VECTORS)


def product_of_columns(a, b, needs_sums):
    """Return (a.T @ b, the sums of the columns of a or None) for a (rows, m) and b (rows, n)."""
    output, total = empty((a.shape[1], b.shape[1]), a.dtype), np.zeros(a.shape[1] if needs_sums else 0)
    if not len(a) or not output.size:
        output[...] = 0
        return output, a.sum(axis=0) if needs_sums else None
    tasks = min(num_threads(), -(-a.shape[1] // COLUMN_TILE_ROWS))
    width = COLUMN_PANEL_VECTORS * LEVEL.vector_bytes // a.dtype.itemsize
    laid = -(-min(b.shape[1], PART_COLUMNS) // width) * width + STRIP
    # Of each task: panels, a strip, a tile, and alignment to a cache line.
    size = CHUNK_ROWS * laid + COLUMN_TILE_ROWS * width + CACHE_LINE // a.dtype.itemsize
    scratch = empty((tasks, size), a.dtype)
    _multiply_columns(as_kernel_array(a), as_kernel_array(b), output, total, scratch, tasks)
    return output, total.astype(a.dtype, copy=False) if needs_sums else None


# --- kernels ----------------------------------------------------------------------------------------


@parallel_kernel
def _multiply_columns(a, b, output, total, scratch, task, tasks):
    rows, columns = output.shape
    tiles = (rows + COLUMN_TILE_ROWS - 1) // COLUMN_TILE_ROWS
    first, end = share(tiles, task, tasks) * COLUMN_TILE_ROWS, share(tiles, task + 1, tasks) * COLUMN_TILE_ROWS
    end = min(end, rows)
    for j in range(0, columns, PART_COLUMNS):
        part_columns = min(PART_COLUMNS, columns - j)
        part = max(PART // part_columns // STRIP, 1) * STRIP
        for i in range(first, end, part):
            rows_of_part, columns_of_part = (i, min(i + part, end)), (j, j + part_columns)
            _multiply_part(a, b, output, total, rows_of_part, columns_of_part, aligned(scratch[task]))


@helper
def _multiply_part(a, b, output, total, rows, columns, panels):
    """Compute a part of the output, (first, end) of its rows and columns.

    With the first columns, unless `total` is empty, also the sums of the columns of `a` for these rows.
    """
    (top, bottom), (left, right), width = rows, columns, COLUMN_PANEL_VECTORS * lanes(output)
    strip = pointer(panels, rounded_up(right - left, width) * CHUNK_ROWS)
    spare = pointer(strip, STRIP * CHUNK_ROWS)
    for k in range(0, len(a), CHUNK_ROWS):
        depth = min(CHUNK_ROWS, len(a) - k)
        _lay(pointer(b, k * b.shape[1] + left), b.shape[1], depth, right - left, panels, width)
        for i in range(top, bottom, STRIP):
            count = min(STRIP, bottom - i)
            if left == 0 and total.size > 0:
                _sum_columns(pointer(a, k * a.shape[1] + i), a.shape[1], depth, count, pointer(total, i), spare)
            _lay(pointer(a, k * a.shape[1] + i), a.shape[1], depth, count, strip, CACHE_LINE // itemsize(a))
            for j in range(left, right, width):
                panel = pointer(panels, (j - left) * CHUNK_ROWS)
                _multiply_strip(strip, count, panel, depth, output, i, j, k > 0, spare)


@inline_helper
def _lay(source, row, depth, columns, panels, width):
    """Write `depth` rows as panels of `width` columns, a row of all panels at a time: panel by panel is slower."""
    full = columns - columns % width
    for k in range(depth):
        x, target = pointer(source, k * row), pointer(panels, k * width)
        for j in range(0, full, width):
            for v in range(0, width, lanes(x)):
                store(target, j * CHUNK_ROWS + v, load(x, j + v))
        for j in range(full, columns, lanes(x)):
            store(target, full * CHUNK_ROWS + j - full, load_masked(x, j, first_lanes(x, columns - j), 0.0))


@helper
def _sum_columns(source, row, depth, columns, total, spare):
    """Add the sums of `columns` columns over `depth` rows to total, in blocks of rows as in `rows.sum_blocks`."""
    x, sums = wide_pointer(source, 0), wide_pointer(spare, 0)
    for c in range(0, columns, lanes(x)):
        inside = first_lanes(x, columns - c)
        for first in range(0, depth, BLOCK_ROWS):
            block = broadcast(x, 0.0)
            for k in range(first, min(first + BLOCK_ROWS, depth)):
                block += load_masked(x, k * row + c, inside, 0.0)
            store(sums, 0, block)
            for v in range(min(lanes(x), columns - c)):
                total[c + v] += spare[v]


@helper
def _multiply_strip(strip, count, panel, depth, output, i, j, accumulate, spare):
    """Compute output[i:, j:] (+)= the product of the `count` columns of a strip with a panel."""
    columns, width, group = output.shape[1], COLUMN_PANEL_VECTORS * lanes(output), CACHE_LINE // itemsize(output)
    for first in range(0, count, COLUMN_TILE_ROWS):
        a, c = pointer(strip, first // group * group * CHUNK_ROWS + first % group), (i + first) * columns + j
        rows, inside = min(count - first, COLUMN_TILE_ROWS), min(columns - j, width)
        prefetch_tile(output, i + first, rows, j, inside)
        if rows == COLUMN_TILE_ROWS and inside == width:
            _tile(a, 1, group, rows - 1, panel, width, depth, pointer(output, c), columns, accumulate)
        else:
            _tile(a, 1, group, rows - 1, panel, width, depth, spare, width, False)
            _add_tile(spare, width, pointer(output, c), columns, rows, inside, accumulate)


@helper
def _add_tile(source, source_row, target, target_row, rows, columns, accumulate):
    """Compute target (+)= source for its first rows and columns."""
    for i in range(rows):
        x, y = pointer(source, i * source_row), pointer(target, i * target_row)
        for j in range(0, columns, lanes(source)):
            inside, value = first_lanes(source, columns - j), load(x, j)
            if accumulate:
                value += load_masked(y, j, inside, 0.0)
            store_masked(y, j, value, inside)
