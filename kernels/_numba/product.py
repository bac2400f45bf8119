"""The product of rows with packed panels, by tasks, and what happens to a sum on its way to the output.

A task is a block of up to TASK_ROWS rows times one panel (see panels.py). Its sums stay in a scratch block that fits
the first cache levels; each tile of them is written to the output once, on the way through bias, activation and
residual. The order of each element's sum depends on the depth alone. While a thread works on a task it fetches the
panel of its next one, so that weights stream from memory behind the arithmetic.
"""

from numba import types
from numba.extending import overload

from ..activation_names import NO_ACTIVATION
from . import isa
from .amx import TILES_SCRATCH
from .arrays import CACHE_LINE
from .jit import helper, inline_helper
from .low_precision import corrected_sums
from .pointwise import activation_function
from .rows import share
from .simd import aligned, first_lanes, itemsize, lanes, load, load_masked, pointer, prefetch_write, store_masked
from .tasks import take_task
from .tile import make_fetching_tile, make_output_tile

# The sums of the largest tile, a row of the panel and a broadcast fit the vector registers.
WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS = (8, 3) if isa.LEVEL.registers >= 32 else (4, 3)
TASK_ROWS = 128
CHUNK_DEPTH = 768  # words of a panel at once: they take 150 KB of the second-level cache

_HALF_ROWS = WEIGHT_TILE_ROWS // 2
_full_tile = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_half_tile = make_fetching_tile(_HALF_ROWS, WEIGHT_PANEL_VECTORS)
_row_tile = make_fetching_tile(1, WEIGHT_PANEL_VECTORS)
_output_tile = make_output_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)


def scratch_size(dtype) -> int:
    """Elements of the scratch of one task, for sums of a NumPy dtype that begin on a cache line."""
    size = (TASK_ROWS * WEIGHT_PANEL_VECTORS * isa.LEVEL.vector_bytes + CACHE_LINE) // dtype.itemsize
    return max(size, TILES_SCRATCH) if isa.LEVEL.tiles else size


@inline_helper
def _word_size(x):
    """Elements per word."""
    return max(4 // itemsize(x), 1)


@inline_helper
def finish_with(finish):
    """Bias (columns,) and residual (rows, columns), both empty if absent, and the activation's code, for `run_product`.

    Pointers instead of arrays: an array that is unpacked from a tuple is counted as a reference, 50 ns a vector.
    """
    bias, residual, activation = finish
    return pointer(bias, 0), bias.size > 0, pointer(residual, 0), residual.size > 0, activation


@helper
def run_product(a, strides, panels, output, finish, levels, counter, scratch):
    """Take tasks of output = activation(a @ panels + bias) + residual until there are none left.

    Args:
        a: an array whose memory is read as flat; rows come in groups of n = max(WEIGHT_TILE_ROWS, lanes of the sums).
        strides: (row, column, group) in words: element (i, k) lies at i // n * group + i % n * row + k * column.
        panels: (panels, depth, width), in words along the depth.
        finish: what `finish_with` makes of bias, residual and activation.
        levels: None, or for int8 pointers to (zero, step, scale, column_sums): of each row, of each panel's column.
        counter: hands out the tasks.
        scratch: `scratch_size` elements of the dtype of the sums.
    """
    count, rows = panels.shape[0], output.shape[0]
    blocks = (rows + TASK_ROWS - 1) // TASK_ROWS
    tiles = (rows + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS
    sums = aligned(scratch)
    task = take_task(counter)
    while task < blocks * count:
        following = take_task(counter)
        block, p = divmod(task, count)
        ahead = (following if following < blocks * count else task) % count
        first, end = share(tiles, block, blocks) * WEIGHT_TILE_ROWS, share(tiles, block + 1, blocks) * WEIGHT_TILE_ROWS
        _multiply_block(a, strides, first, min(rows, end), panels, p, ahead, output, finish, levels, sums)
        task = following


@helper
def _multiply_block(a, strides, first, last, panels, p, ahead, output, finish, levels, sums):
    """The rows from first to last, times panel p; panel `ahead` is fetched meanwhile."""
    row, column, group = strides
    width, depth = WEIGHT_PANEL_VECTORS * lanes(sums), panels.shape[1]
    n = max(WEIGHT_TILE_ROWS, lanes(sums))
    line = width * itemsize(panels) * _word_size(panels)  # bytes of a panel for one word of the depth
    step = line // ((last - first + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS)
    for k in range(0, depth, CHUNK_DEPTH):
        part = min(CHUNK_DEPTH, depth - k)
        panel = pointer(panels, (p * depth + k) * width * _word_size(panels))
        for i in range(first, last, WEIGHT_TILE_ROWS):
            count = min(WEIGHT_TILE_ROWS, last - i)
            x = pointer(a, (i // n * group + i % n * row + k * column) * _word_size(panels))
            tile = pointer(sums, (i - first) * width)
            fetched = panels.ctypes.data + (ahead * depth + k) * line + (i - first) // WEIGHT_TILE_ROWS * part * step
            if k + part < depth:
                _multiply_tile(x, row, column, count, panel, part, tile, k > 0, fetched, step)
                continue
            prefetch_tile(output, i, count, p * width, width)
            place, meanwhile = (i, count, p * width), (fetched, step)
            if not _multiply_into(x, row, column, panel, part, tile, k > 0, output, place, finish, levels, meanwhile):
                _multiply_tile(x, row, column, count, panel, part, tile, k > 0, fetched, step)
                finish_tile(tile, width, output, i, count, p * width, finish, levels)


@helper
def _multiply_tile(a, row, column, count, panel, depth, sums, accumulate, ahead, step):
    """sums (+)= the product of `count` rows of a with a block of a panel."""
    width = WEIGHT_PANEL_VECTORS * lanes(sums)
    if count > _HALF_ROWS:
        _full_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    elif count > 1:
        _half_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    else:
        _row_tile(a, row, column, 0, panel, width, depth, sums, width, accumulate, ahead, step)


def _multiply_into(a, row, column, panel, depth, sums, accumulate, output, place, finish, levels, meanwhile):
    """A whole tile's last product, written to the output; False, with nothing done, where that takes another way."""
    raise NotImplementedError("for compiled code")


@overload(_multiply_into, jit_options={"error_model": "numpy", "nogil": True})
def _multiply_into_output(a, row, column, panel, depth, sums, accumulate, output, place, finish, levels, meanwhile):
    if not isinstance(levels, types.NoneType):
        return lambda a, row, column, panel, depth, sums, accumulate, output, place, finish, levels, meanwhile: False

    def multiply(a, row, column, panel, depth, sums, accumulate, output, place, finish, levels, meanwhile):
        first, count, start = place
        bias, has_bias, residual, has_residual, activation = finish
        ahead, step = meanwhile
        width, columns = WEIGHT_PANEL_VECTORS * lanes(sums), output.shape[1]
        if count < WEIGHT_TILE_ROWS or start + width > columns or activation != NO_ACTIVATION:
            return False
        at = first * columns + start
        _output_tile(
            a, row, column, panel, width, depth, pointer(output, at), columns, sums, width, accumulate,
            pointer(bias, start), has_bias, pointer(residual, at), has_residual, ahead, step,
        )  # fmt: skip
        return True

    return multiply


@helper
def prefetch_tile(output, first, count, column, width):
    """A hint that `count` rows of `width` columns will soon be written."""
    for i in range(first, first + count):
        for j in range(column, column + width, lanes(output)):
            prefetch_write(output, i * output.shape[1] + j)


def _value(sums, at, row, column, levels):
    """A vector of sums as it stands, or of bytes as the levels of its row and columns say."""
    raise NotImplementedError("for compiled code")


@overload(_value, jit_options={"error_model": "numpy", "nogil": True, "forceinline": True})
def _value_of(sums, at, row, column, levels):
    if isinstance(levels, types.NoneType):
        return lambda sums, at, row, column, levels: load(sums, at)

    def rescaled(sums, at, row, column, levels):
        zero, step, scale, column_sums = levels
        exact = corrected_sums(load(sums, at), zero[row], load(column_sums, column))
        return exact * (load(scale, column) * step[row])

    return rescaled


@inline_helper
def _finish_vector(sums, at, row, column, output, finish, levels, inside):
    """One vector of sums through bias, activation and residual to the output."""
    bias, has_bias, residual, has_residual, activation = finish
    target = row * output.shape[1] + column
    value = _value(sums, at, row, column, levels)
    if has_bias:
        value += load_masked(bias, column, inside, 0.0)
    if activation != NO_ACTIVATION:
        value = activation_function(activation, value)
    if has_residual:
        value += load_masked(residual, target, inside, 0.0)
    store_masked(output, target, value, inside)


@helper
def finish_tile(sums, width, output, first, count, column, finish, levels):
    """Send `count` rows of sums to the output."""
    end = min(column + width, output.shape[1])
    full = end - (end - column) % lanes(sums)
    everywhere = first_lanes(output, lanes(output))  # a constant: the compiler makes plain loads and stores of it
    for i in range(count):
        at = i * width - column
        for j in range(column, full, lanes(sums)):
            _finish_vector(sums, at + j, first + i, j, output, finish, levels, everywhere)
        if full < end:
            _finish_vector(sums, at + full, first + i, full, output, finish, levels, first_lanes(output, end - full))
