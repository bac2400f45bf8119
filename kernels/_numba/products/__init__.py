"""The product of rows with packed panels, in tasks that threads share.

A task is a block of up to TASK_ROWS rows times one panel (panels.py), or times all panels if the rows are packed as
well. The sums of a block and a panel stay in scratch that fits the first cache levels. Each tile of them is written to
the output once, through bias, activation and residual (epilogue.py). The order of an element's sum depends on the depth
alone. While a thread multiplies a chunk of a panel it fetches the next one, so that weights stream behind arithmetic.

Panels of low precision that are multiplied as a wider type are widened once for all rows of a task, by the first tile
as it multiplies them (panels.py); for few rows, panels of whole words (dot.py) are widened by each tile. Sums and their
order are those of wide panels. The first tile reads rows as they lie, the others packed ones.
"""

import functools

import numpy as np
from numba import types

from ...activation_names import NO_ACTIVATION
from ..amx.tiles import TILES_SCRATCH
from ..compile import by_types, helper, inline_helper, isa
from ..memory import CACHE_LINE
from ..rows import share, take_task
from ..simd import aligned, itemsize, lanes, pointer, pointer_as, prefetch
from .epilogue import apply_epilogue, prefetch_tile
from .panels import are_grouped, are_widened, depth_of, multiply_and_widen, words_of
from .tile import (
    WEIGHT_PANEL_VECTORS,
    WEIGHT_TILE_ROWS,
    group_rows,
    make_fetching_tile,
    make_output_tile,
    make_row_packer,
)

TASK_ROWS = 128 // WEIGHT_TILE_ROWS * WEIGHT_TILE_ROWS
CHUNK_DEPTH = 768  # words of a panel at once, or of the widened one: 150 KB of the second-level cache
# Lines of scratch, as wide as a panel, before packed rows, by whether panels are widened.
_LINES = {False: TASK_ROWS, True: TASK_ROWS + CHUNK_DEPTH + 1}
# From so many rows of a task on, the first tile stores its widened panel for the others; for fewer storing costs more.
WIDENED_ROWS = 3 * WEIGHT_TILE_ROWS

_SHORT_ROWS = 4  # of the tile for the last rows
_IS_WIDENED = {np.uint8: True, np.uint16: not isa.LEVEL.bfloat16_dot, np.int8: isa.has_pair_dot()}  # by panels' dtype
_full_tile = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_short_tile = make_fetching_tile(_SHORT_ROWS, WEIGHT_PANEL_VECTORS)
_row_tile = make_fetching_tile(1, WEIGHT_PANEL_VECTORS)
_output_tile = make_output_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_packed_tile = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS, packed=True)
_packed_output_tile = make_output_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS, packed=True)


@functools.cache  # a dtype's name is made anew each time it is asked for
def sums_dtype(storage):
    """Return the dtype of the sums of products with panels of a dtype (uint16: bfloat16, uint8: int8 in groups)."""
    return np.dtype({"uint16": np.float32, "uint8": np.float32, "int8": np.int32}.get(storage.name, storage))


def make_scratch(storage, threads, rows):
    """Return scratch for each thread, for products of up to `rows` rows with panels of dtype `storage`.

    It holds sums that begin on a cache line, a widened chunk of a panel if panels are widened, and packed rows.
    """
    sums = sums_dtype(storage)
    is_widened = _IS_WIDENED.get(storage.type, False)
    packed = PACKED_BYTES if (storage != np.uint16 or is_widened) and rows >= LEAST_PACKED else 0
    size = (_LINES[is_widened] * WEIGHT_PANEL_VECTORS * isa.LEVEL.vector_bytes + packed + CACHE_LINE) // sums.itemsize
    return np.empty((threads, max(size, TILES_SCRATCH) if isa.LEVEL.tiles else size), sums)


@by_types
def _packed_place(sums, a, panels):
    """Return a pointer to packed rows in scratch that begins at `sums`."""
    lines = _LINES[are_widened(a, panels)]
    return lambda sums, a, panels: pointer(sums, lines * WEIGHT_PANEL_VECTORS * lanes(sums))


@by_types(inline=True)
def _word_size(panels):
    """Return the elements per word of panels."""
    bits = 8 * (isa.WORD_BYTES if panels.dtype in (types.int8, types.uint16) else 4)
    count = max(bits // panels.dtype.bitwidth, 1)
    return lambda panels: count


@by_types(inline=True)
def _group_rows(sums):
    count = group_rows(sums.dtype.bitwidth // 8)
    return lambda sums: count


@helper
def run_product(a, strides, panels, output, epilogue, scaling, counter, scratch):
    """Compute tasks of output = activation(a @ panels + bias) + residual until none is left.

    Args:
        a: an array read as flat memory; its rows come in groups of n, see `group_rows`.
        strides: (row, column, group) in words: element (i, k) lies at i // n * group + i % n * row + k * column. In
            wide words if panels are widened; column is 1 then, and row the depth.
        panels: (panels, depth, width), in words along the depth.
        output: (rows, columns).
        epilogue: what `epilogue_pointers` returns.
        scaling: None, or for int8 pointers to zero and step of each row, scale and sum of each column.
        counter: the number of tasks taken so far, and the number of threads.
        scratch: one thread's part of `make_scratch`.
    """
    count, rows = panels.shape[0], output.shape[0]
    blocks, whole = _blocks(rows, counter[1], a, panels, output)
    last = whole + (blocks - whole) * count
    left = pointer(a, 0), (strides[0], *strides)
    own, laid = left, -1
    tiles = (rows + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS
    sums, task = aligned(scratch), take_task(counter)
    memory = _packed_place(sums, a, panels)
    while task < last:
        following = take_task(counter)
        block, p, uses = _task_of(task, whole, count)
        _, ahead, _ = _task_of(following if following < last else task, whole, count)
        first, end = share(tiles, block, blocks) * WEIGHT_TILE_ROWS, share(tiles, block + 1, blocks) * WEIGHT_TILE_ROWS
        if block != laid:
            own, laid = left, block
            # Other threads take the tasks in between.
            if max(uses, (count - p) // (following - task)) >= LEAST_USES:
                own = pack_rows(*left, first, min(rows, end), panels, memory)
        for q in range(p, p + uses):
            then = q + 1 if q + 1 < p + uses else ahead
            _multiply_block(left, own, first, min(rows, end), panels, q, then, output, epilogue, scaling, sums)
        task = following


@inline_helper
def _task_of(task, whole, count):
    """Return (block, first panel, panels) of a task: all panels for the first `whole` blocks, else one."""
    if task < whole:
        return task, 0, count
    return whole + (task - whole) // count, (task - whole) % count, 1


@by_types
def _blocks(rows, threads, a, panels, output):
    """Return the number of blocks of rows, and how many of them are a single task.

    These are packed by one thread. The last blocks, one per thread, are split by panel so that idle threads can help.
    """
    are_wide = are_widened(a, panels)

    def of_packed(rows, threads, a, panels, output):
        depth = depth_of(panels, panels.shape[1]) if are_wide else panels.shape[1]
        most = most_packed(depth, output)
        if most < LEAST_PACKED:
            return (rows + TASK_ROWS - 1) // TASK_ROWS, 0
        together = min(most, TASK_ROWS)
        blocks = (rows + together - 1) // together
        return blocks, max(blocks // threads - 1, 0) * threads

    def as_they_lie(rows, threads, a, panels, output):
        return (rows + TASK_ROWS - 1) // TASK_ROWS, 0

    return of_packed if are_packed(a, panels) else as_they_lie


@helper
def _multiply_block(lying, own, first, last, panels, p, ahead, output, epilogue, scaling, sums):
    """Multiply the rows from first to last by panel p; prefetch its next chunk, or the first of panel `ahead`.

    `lying` and `own` are (pointer, strides) of the rows as they lie and as they are read, perhaps packed.
    """
    width, depth, chunk = WEIGHT_PANEL_VECTORS * lanes(sums), panels.shape[1], words_of(lying[0], panels, CHUNK_DEPTH)
    line = width * itemsize(panels) * _word_size(panels)  # bytes of a panel for one word of the depth
    step = line // ((last - first + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS)
    for k in range(0, depth, chunk):
        part = min(chunk, depth - k)
        panel = pointer(panels, (p * depth + k) * width * _word_size(panels))
        # Chunk k of `ahead` would come too early: large depths overflow the second-level cache.
        word = p * depth + k + chunk if k + chunk < depth else ahead * depth
        meanwhile, place = (panels.ctypes.data + word * line, step), (first, last, p * width)
        _multiply_chunk(
            lying, own, panel, (k, part, k + part == depth), output, place, epilogue, scaling, sums, meanwhile
        )


@by_types
def _multiply_chunk(lying, own, panel, chunk, output, place, epilogue, scaling, sums, meanwhile):
    """Multiply a block's rows by a chunk of a panel.

    `chunk` is (first word of the depth, words, whether they are the last), `place` (first row, end, first column).
    """

    def multiply(lying, own, panel, chunk, output, place, epilogue, scaling, sums, meanwhile):
        _multiply_rows(*own, panel, chunk, output, place, epilogue, scaling, sums, meanwhile)

    def widen_and_multiply(lying, own, panel, chunk, output, place, epilogue, scaling, sums, meanwhile):
        (a, strides), (k, words, is_last) = lying, chunk
        tile_start, row, column, group = strides
        (i, last, start), (ahead, step) = place, meanwhile
        if are_words and last - i < WIDENED_ROWS and row % 2 == 0:
            in_words = tile_start // 2, row // 2, column, group // 2
            _multiply_rows(a, in_words, panel, chunk, output, place, epilogue, scaling, sums, meanwhile)
            return
        width = WEIGHT_PANEL_VECTORS * lanes(sums)
        wide = pointer_as(pointer(sums, TASK_ROWS * width), a)
        first, depth = depth_of(panel, k), depth_of(panel, words)
        each, inside = max(step * words // depth, 1), min(depth, row - first)
        if are_words and row % 2 != 0:  # such rows cannot be read in words: a tile with unused sums
            unread = pointer(sums, (TASK_ROWS + CHUNK_DEPTH) * width)
            multiply_and_widen(wide, 0, 1, panel, depth, unread, False, wide, ahead, 0)
        else:
            x, count = _row_of(a, strides, i, first, wide, output), min(WEIGHT_TILE_ROWS, last - i)
            multiply_and_widen(x, row, count, panel, inside, sums, k > 0, wide, ahead, each)
            if is_last:
                apply_epilogue(sums, width, output, i, count, start, epilogue, scaling)
            i, ahead, sums = i + count, ahead + depth * each, pointer(sums, count * width)
        then = first, inside, is_last
        _multiply_rows(*own, wide, then, output, (i, last, start), epilogue, scaling, sums, (ahead, each))

    are_words = not are_grouped(panel)
    return widen_and_multiply if are_widened(lying[0], panel) else multiply


@inline_helper
def _row_of(a, strides, i, k, panel, output):
    """Point at word k of row i, a tile's first, of the left operand, in words of the panel."""
    start, _, column, group = strides
    n = _group_rows(output)
    return pointer(a, (i // n * group + i % n * start + k * column) * _word_size(panel))


@helper
def _multiply_rows(a, strides, panel, chunk, output, place, epilogue, scaling, sums, meanwhile):
    """Multiply like `_multiply_chunk`, with strides and chunk in words of this panel."""
    (_, row, column, _), (k, part, is_last) = strides, chunk
    (first, last, start), (ahead, step) = place, meanwhile
    width = WEIGHT_PANEL_VECTORS * lanes(sums)
    for i in range(first, last, WEIGHT_TILE_ROWS):
        count = min(WEIGHT_TILE_ROWS, last - i)
        x = _row_of(a, strides, i, k, panel, output)
        tile = pointer(sums, (i - first) * width)
        fetched = ahead + (i - first) // WEIGHT_TILE_ROWS * part * step
        if not is_last:
            _multiply_tile(x, row, column, count, panel, part, tile, k > 0, fetched, step)
            continue
        at, then = (i, count, start), (fetched, step)
        if not _multiply_into(x, row, column, panel, part, tile, k > 0, output, at, epilogue, scaling, then):
            _multiply_tile(x, row, column, count, panel, part, tile, k > 0, fetched, step)
            apply_epilogue(tile, width, output, i, count, start, epilogue, scaling)


@helper
def _multiply_tile(a, row, column, count, panel, depth, sums, accumulate, ahead, step):
    """Compute sums (+)= the product of `count` rows of a with a block of a panel."""
    width = WEIGHT_PANEL_VECTORS * lanes(sums)
    if count > _SHORT_ROWS and lie_packed(row, column):
        _packed_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    elif count > _SHORT_ROWS:
        _full_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    elif count > 1:
        _short_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    else:
        _row_tile(a, row, column, 0, panel, width, depth, sums, width, accumulate, ahead, step)


@by_types
def _multiply_into(a, row, column, panel, depth, sums, accumulate, output, place, epilogue, scaling, meanwhile):
    """Write a whole tile's last product to the output; return False, with nothing done, if that is impossible."""
    if not isinstance(scaling, types.NoneType):
        return lambda a, row, column, panel, depth, sums, accumulate, output, place, epilogue, scaling, meanwhile: False

    def multiply(a, row, column, panel, depth, sums, accumulate, output, place, epilogue, scaling, meanwhile):
        first, count, start = place
        bias, has_bias, residual, has_residual, activation = epilogue
        ahead, step = meanwhile
        width, columns = WEIGHT_PANEL_VECTORS * lanes(sums), output.shape[1]
        if count < WEIGHT_TILE_ROWS or start + width > columns or activation != NO_ACTIVATION:
            return False
        prefetch_tile(output, first, count, start, width)
        at = first * columns + start
        c, before = pointer(output, at), (sums, width, accumulate)
        added = pointer(bias, start), has_bias, pointer(residual, at), has_residual
        if lie_packed(row, column):
            _packed_output_tile(a, row, column, panel, width, depth, c, columns, *before, *added, ahead, step)
        else:
            _output_tile(a, row, column, panel, width, depth, c, columns, *before, *added, ahead, step)
        return True

    return multiply


# --- packed rows ------------------------------------------------------------------------------------------------------
#
# Rows, of floats or words of bytes, packed for the tiles of a product by the thread that multiplies them: the elements
# that a tile reads next lie in one cache line instead of one for each row. Packing takes half a panel's time, so a
# thread packs rows that it multiplies by LEAST_USES panels or more. It saves 2 to 8 % of the time of 1,024 rows.

# Memory for a task's rows, which fits the second-level cache beside a panel. None with AVX2, where packing gains
# nothing.
PACKED_BYTES = 128 * 1536 * 4 if isa.LEVEL.vector_bytes == 64 else 0
LEAST_PACKED = 32  # rows
LEAST_USES = 4  # panels that a thread expects to multiply packed rows by

_pack_tile = make_row_packer(WEIGHT_TILE_ROWS)


def are_packed(a, panels):
    """Return whether rows of these types are packed if there are enough of them."""
    return PACKED_BYTES > 0 and (a.dtype != types.uint16 or are_widened(a, panels))


@inline_helper
def lie_packed(row, column):
    """Return whether a tile's rows with these strides were written by `pack_rows`."""
    return row == 1 and column == WEIGHT_TILE_ROWS


@inline_helper
def most_packed(depth, like):
    """Return how many rows of this depth fit PACKED_BYTES."""
    return PACKED_BYTES // (itemsize(like) * depth) // WEIGHT_TILE_ROWS * WEIGHT_TILE_ROWS


@by_types
def pack_rows(a, strides, first, last, panels, memory):
    """Write the rows from first to last to `memory` as (tiles, depth, rows of a tile).

    `strides` are (start of a tile, row, column, group). Returns a pointer and strides in place of a's, or a's own if
    the rows are not packed.
    """

    def pack(a, strides, first, last, panels, memory):
        words = pointer_as(a, memory)
        _, depth, column, _ = strides
        count = last - first
        if column != 1 or depth < lanes(memory) or not LEAST_PACKED <= count <= most_packed(depth, memory):
            return a, strides
        packed = pointer(memory, -first * depth)
        for i in range(first, last, WEIGHT_TILE_ROWS):
            for k in range(0, depth, lanes(memory)):
                for j in range(i + WEIGHT_TILE_ROWS, min(i + 2 * WEIGHT_TILE_ROWS, last)):
                    prefetch(words, j * depth + k)
                at = min(k, depth - lanes(memory))
                target = pointer(packed, i * depth + at * WEIGHT_TILE_ROWS)
                _pack_tile(pointer(words, i * depth + at), depth, last - 1 - i, target)
        return pointer_as(packed, a), (depth, 1, WEIGHT_TILE_ROWS, _group_rows(memory) * depth)

    return pack if are_packed(a, panels) else lambda a, strides, first, last, panels, memory: (a, strides)
