"""The gradient of a weight on the CPU: grad_output.T @ input, a sum over rows.

Both matrices are taken a chunk of rows at a time, in the order in which they lie in memory: the chunk of the input is
laid out in panels, that of grad_output in strips, whose tiles add to the output. A task has some rows of the output,
and lays out all panels for itself. The order of an element's sum depends on the number of rows alone.

Measured on a Zen 3 (AVX2, float32, 1 thread, beside other work), in GFLOP/s, where the FMA limit was 80: 67 at 512 and
4,096 rows of 192 and 768 columns, 56 with both matrices packed as a whole and multiplied as a forward product is. Their
strided pieces were read at a quarter of the memory's speed, and a panel of 768 rows does not fit the first-level cache.
"""

from .._numba import LEVEL, as_kernel_array, empty, helper, num_threads, parallel_kernel
from .._numba.arrays import CACHE_LINE
from .._numba.product import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS
from .._numba.rows import share
from .._numba.simd import aligned, first_lanes, lanes, load, load_masked, pointer, store, store_masked
from .._numba.tile import make_tile

CHUNK_ROWS = 256  # with 128 or 192 as fast, but where the output is large, it is read and written more often
STRIP = 64  # columns: 32 take 10 % longer, 128 are as fast
PART = 1 << 18  # elements of the output that are summed up before the next, so that they stay in a cache

_tile = make_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)


def product_of_columns(a, b):
    """a.T @ b for a (rows, m) and b (rows, n)."""
    output = empty((a.shape[1], b.shape[1]), a.dtype)
    if not len(a) or not output.size:
        output[...] = 0
        return output
    tasks = min(num_threads(), -(-a.shape[1] // WEIGHT_TILE_ROWS))
    scratch = empty((tasks, _scratch_size(b.shape[1], a.dtype)), a.dtype)
    _multiply_columns(as_kernel_array(a), as_kernel_array(b), output, scratch, tasks)
    return output


def _scratch_size(columns, dtype):
    """Elements of a task's scratch: panels, a strip, a tile, and what begins them on a cache line."""
    width = WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // dtype.itemsize
    return CHUNK_ROWS * (-(-columns // width) * width + STRIP) + WEIGHT_TILE_ROWS * width + CACHE_LINE // dtype.itemsize


# --- kernels ----------------------------------------------------------------------------------------


@parallel_kernel
def _multiply_columns(a, b, output, scratch, task, tasks):
    rows, columns = output.shape
    tiles = (rows + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS
    first, end = share(tiles, task, tasks) * WEIGHT_TILE_ROWS, share(tiles, task + 1, tasks) * WEIGHT_TILE_ROWS
    part, end = max(PART // columns // STRIP, 1) * STRIP, min(end, rows)
    for i in range(first, end, part):
        _multiply_part(a, b, output, i, min(i + part, end), aligned(scratch[task]))


@helper
def _multiply_part(a, b, output, first, last, panels):
    """The rows of the output from first to last."""
    columns, width = output.shape[1], WEIGHT_PANEL_VECTORS * lanes(output)
    strip = pointer(panels, (columns + width - 1) // width * width * CHUNK_ROWS)
    spare = pointer(strip, STRIP * CHUNK_ROWS)
    for k in range(0, len(a), CHUNK_ROWS):
        depth = min(CHUNK_ROWS, len(a) - k)
        _lay_panels(pointer(b, k * columns), depth, columns, panels)
        for i in range(first, last, STRIP):
            count = min(STRIP, last - i)
            _lay_strip(pointer(a, k * a.shape[1] + i), a.shape[1], depth, count, strip)
            for j in range(0, columns, width):
                _multiply_strip(strip, count, pointer(panels, j * CHUNK_ROWS), depth, output, i, j, k > 0, spare)


@helper
def _lay_panels(source, depth, columns, panels):
    """`depth` rows as panels, row by row: panel by panel, each row would be read in many pieces."""
    width = WEIGHT_PANEL_VECTORS * lanes(source)
    for k in range(depth):
        row = pointer(source, k * columns)
        for j in range(0, columns, width):
            target = pointer(panels, j * CHUNK_ROWS + k * width)
            _copy(pointer(row, j), min(columns - j, width), target)


@helper
def _lay_strip(source, row, depth, count, strip):
    for k in range(depth):
        _copy(pointer(source, k * row), count, pointer(strip, k * STRIP))


@helper
def _copy(source, count, target):
    full = count - count % lanes(source)
    for j in range(0, full, lanes(source)):
        store(target, j, load(source, j))
    if full < count:
        store(target, full, load_masked(source, full, first_lanes(source, count - full), 0.0))


@helper
def _multiply_strip(strip, count, panel, depth, output, i, j, accumulate, spare):
    """output[i:, j:] (+)= the product of the `count` columns of a strip with a panel."""
    columns, width = output.shape[1], WEIGHT_PANEL_VECTORS * lanes(output)
    for first in range(0, count, WEIGHT_TILE_ROWS):
        a, c = pointer(strip, first), pointer(output, (i + first) * columns + j)
        last = min(count - first, WEIGHT_TILE_ROWS) - 1
        if last == WEIGHT_TILE_ROWS - 1 and j + width <= columns:
            _tile(a, 1, STRIP, last, panel, width, depth, c, columns, accumulate)
        else:
            _tile(a, 1, STRIP, last, panel, width, depth, spare, width, False)
            _add_tile(spare, width, c, columns, last + 1, min(columns - j, width), accumulate)


@helper
def _add_tile(source, source_row, target, target_row, rows, columns, accumulate):
    """target (+)= source, of which some rows and columns are used."""
    for i in range(rows):
        x, y = pointer(source, i * source_row), pointer(target, i * target_row)
        for j in range(0, columns, lanes(source)):
            inside, value = first_lanes(source, columns - j), load(x, j)
            if accumulate:
                value += load_masked(y, j, inside, 0.0)
            store_masked(y, j, value, inside)
