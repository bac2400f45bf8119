"""The product of rows with packed panels, by tasks.

A task is a block of up to TASK_ROWS rows times one panel (see panels.py), or times all of them where rows are packed,
too (below). The sums of a block and a panel stay in scratch that fits the first cache levels; each tile of
them is written to the output once, on the way through bias, activation and residual (epilogue.py). The order of each
element's sum depends on the depth alone. While a thread multiplies a chunk of a panel it fetches the next, so that
weights stream behind the arithmetic.

Panels of low precision that are multiplied as something wider are widened once for all rows of a task, by the first
tile as it multiplies them (widening.py); for few rows those of whole words (dot.py) by each tile. The sums and their
order are those of wide panels. That tile reads rows as they lie, the others packed ones.
"""

import numpy as np
from numba import types

from ...activation_names import NO_ACTIVATION
from ..amx.tiles import TILES_SCRATCH
from ..compile import by_types, helper, inline_helper, isa
from ..memory import CACHE_LINE
from ..rows import share, take_task
from ..simd import aligned, itemsize, lanes, pointer, pointer_as, prefetch
from .epilogue import finish_tile, prefetch_tile
from .tile import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, make_fetching_tile, make_output_tile, make_row_packer
from .widening import are_grouped, are_widened, depth_of, multiply_and_widen, words_of

TASK_ROWS = 128
CHUNK_DEPTH = 768  # words of a panel at once, or those that they widen to: 150 KB of the second-level cache
# Lines of scratch, each as wide as a panel, that come before packed rows, by whether panels are widened.
_LINES = {False: TASK_ROWS, True: TASK_ROWS + CHUNK_DEPTH + 1}
# Rows of a task from which on the first tile keeps its panel widened for the others. Storing it costs some time: with
# bfloat16 7 % more with 16 rows than if both tiles widen it, 6 % less with 32 (Emerald Rapids, AVX-512, 2 threads,
# widths of 768 to 3072). A loop of its own, which cannot hide behind products, takes as long as a row of tiles.
WIDENED_ROWS = 3 * WEIGHT_TILE_ROWS

_HALF_ROWS = WEIGHT_TILE_ROWS // 2
_IS_WIDENED = {np.uint8: True, np.uint16: not isa.LEVEL.bfloat16_dot, np.int8: isa.has_pair_dot()}  # by dtype of panels
_full_tile = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_half_tile = make_fetching_tile(_HALF_ROWS, WEIGHT_PANEL_VECTORS)
_row_tile = make_fetching_tile(1, WEIGHT_PANEL_VECTORS)
_output_tile = make_output_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_packed_tile = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS, packed=True)
_packed_output_tile = make_output_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS, packed=True)


def sums_dtype(storage):
    """The NumPy dtype of the sums of products with panels of a dtype (of bfloat16 uint16, of int8 in groups uint8)."""
    return np.dtype({"uint16": np.float32, "uint8": np.float32, "int8": np.int32}.get(storage.name, storage))


def make_scratch(storage, threads, rows):
    """Scratch for the tasks of each thread, of products of up to `rows` rows with panels of a NumPy dtype: sums that
    begin on a cache line, a widened chunk of a panel if panels are widened, and packed rows."""
    sums = sums_dtype(storage)
    is_widened = _IS_WIDENED.get(storage.type, False)
    packed = PACKED_BYTES if (storage != np.uint16 or is_widened) and rows >= LEAST_PACKED else 0
    size = (_LINES[is_widened] * WEIGHT_PANEL_VECTORS * isa.LEVEL.vector_bytes + packed + CACHE_LINE) // sums.itemsize
    return np.empty((threads, max(size, TILES_SCRATCH) if isa.LEVEL.tiles else size), sums)


@by_types
def _room(sums, a, panels):
    """Where packed rows go in scratch that begins at `sums`."""
    lines = _LINES[are_widened(a, panels)]
    return lambda sums, a, panels: pointer(sums, lines * WEIGHT_PANEL_VECTORS * lanes(sums))


@inline_helper
def _word_size(x):
    """Elements per word."""
    return max(4 // itemsize(x), 1)


@helper
def run_product(a, strides, panels, output, finish, levels, counter, scratch):
    """Take tasks of output = activation(a @ panels + bias) + residual until there are none left.

    Args:
        a: an array whose memory is read as flat; rows come in groups of n = max(WEIGHT_TILE_ROWS, lanes of the sums).
        strides: (row, column, group) in words: element (i, k) lies at i // n * group + i % n * row + k * column. Of
            panels that are widened they are in wide words: column is 1 then, and row the depth.
        panels: (panels, depth, width), in words along the depth.
        finish: what `finish_with` makes.
        levels: None, or for int8 pointers to (zero, step, scale, column_sums): of each row, of each panel's column.
        counter: how many tasks were handed out, and how many threads take them.
        scratch: a thread's of `make_scratch`.
    """
    count, rows = panels.shape[0], output.shape[0]
    blocks, whole = _blocks(rows, counter[1], a, panels, output)
    last = whole + (blocks - whole) * count
    left = pointer(a, 0), (strides[0], *strides)
    own, laid = left, -1
    tiles = (rows + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS
    sums, task = aligned(scratch), take_task(counter)
    room = _room(sums, a, panels)
    while task < last:
        following = take_task(counter)
        block, p, uses = _task_of(task, whole, count)
        _, ahead, _ = _task_of(following if following < last else task, whole, count)
        first, end = share(tiles, block, blocks) * WEIGHT_TILE_ROWS, share(tiles, block + 1, blocks) * WEIGHT_TILE_ROWS
        if block != laid:
            own, laid = left, block
            # Other threads take the tasks between.
            if max(uses, (count - p) // (following - task)) >= LEAST_USES:
                own = pack_rows(*left, first, min(rows, end), panels, room)
        for q in range(p, p + uses):
            then = q + 1 if q + 1 < p + uses else ahead
            _multiply_block(left, own, first, min(rows, end), panels, q, then, output, finish, levels, sums)
        task = following


@inline_helper
def _task_of(task, whole, count):
    """(block, first panel, panels) of a task: those of the first `whole` blocks are all panels, the others one."""
    if task < whole:
        return task, 0, count
    return whole + (task - whole) // count, (task - whole) % count, 1


@by_types
def _blocks(rows, threads, a, panels, output):
    """Into how many blocks the rows are divided, and how many of them are a task each.

    Those are packed by one thread alone: products of 1,024 rows take 2 to 4 % less time. As many blocks as there are
    threads are left, panel by panel, for who is done first.
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
def _multiply_block(lying, own, first, last, panels, p, ahead, output, finish, levels, sums):
    """The rows from first to last, times panel p; meanwhile its next chunk is fetched, at last the first of `ahead`.

    `lying` and `own` are (a pointer, strides) of the rows as they lie and as they are to be read, maybe packed.
    """
    width, depth, chunk = WEIGHT_PANEL_VECTORS * lanes(sums), panels.shape[1], words_of(lying[0], panels, CHUNK_DEPTH)
    line = width * itemsize(panels) * _word_size(panels)  # bytes of a panel for one word of the depth
    step = line // ((last - first + WEIGHT_TILE_ROWS - 1) // WEIGHT_TILE_ROWS)
    for k in range(0, depth, chunk):
        part = min(chunk, depth - k)
        panel = pointer(panels, (p * depth + k) * width * _word_size(panels))
        # Chunk k of `ahead` is too early: a depth of 3,072 overflows the second-level cache, 1.05 times the time.
        word = p * depth + k + chunk if k + chunk < depth else ahead * depth
        meanwhile, place = (panels.ctypes.data + word * line, step), (first, last, p * width)
        _multiply_chunk(lying, own, panel, (k, part, k + part == depth), output, place, finish, levels, sums, meanwhile)


@by_types
def _multiply_chunk(lying, own, panel, chunk, output, place, finish, levels, sums, meanwhile):
    """A block's rows times a chunk of a panel: `chunk` is (first word of the depth, words, whether they are the last),
    `place` (first row, beyond the last one, first column)."""

    def multiply(lying, own, panel, chunk, output, place, finish, levels, sums, meanwhile):
        _multiply_rows(*own, panel, chunk, output, place, finish, levels, sums, meanwhile)

    def widen_and_multiply(lying, own, panel, chunk, output, place, finish, levels, sums, meanwhile):
        (a, strides), (k, words, is_last) = lying, chunk
        tile_start, row, column, group = strides
        (i, last, start), (ahead, step) = place, meanwhile
        if are_words and last - i < WIDENED_ROWS and row % 2 == 0:
            in_words = tile_start // 2, row // 2, column, group // 2
            _multiply_rows(a, in_words, panel, chunk, output, place, finish, levels, sums, meanwhile)
            return
        width = WEIGHT_PANEL_VECTORS * lanes(sums)
        wide = pointer_as(pointer(sums, TASK_ROWS * width), a)
        first, depth = depth_of(panel, k), depth_of(panel, words)
        each, inside = max(step * words // depth, 1), min(depth, row - first)
        if are_words and row % 2 != 0:  # such rows cannot be read in words: a tile whose sums nobody reads
            unread = pointer(sums, (TASK_ROWS + CHUNK_DEPTH) * width)
            multiply_and_widen(wide, 0, 1, panel, depth, unread, False, wide, ahead, 0)
        else:
            x, count = _row_of(a, strides, i, first, wide, output), min(WEIGHT_TILE_ROWS, last - i)
            multiply_and_widen(x, row, count, panel, inside, sums, k > 0, wide, ahead, each)
            if is_last:
                prefetch_tile(output, i, count, start, width)
                finish_tile(sums, width, output, i, count, start, finish, levels)
            i, ahead, sums = i + count, ahead + depth * each, pointer(sums, count * width)
        then = first, inside, is_last
        _multiply_rows(*own, wide, then, output, (i, last, start), finish, levels, sums, (ahead, each))

    are_words = not are_grouped(panel)
    return widen_and_multiply if are_widened(lying[0], panel) else multiply


@inline_helper
def _row_of(a, strides, i, k, panel, output):
    """Points at word k of row i, a tile's first, of the left operand, in words of the panel."""
    start, _, column, group = strides
    n = max(WEIGHT_TILE_ROWS, lanes(output))
    return pointer(a, (i // n * group + i % n * start + k * column) * _word_size(panel))


@helper
def _multiply_rows(a, strides, panel, chunk, output, place, finish, levels, sums, meanwhile):
    """As `_multiply_chunk`; strides and chunk are in words of the panel given here."""
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
        prefetch_tile(output, i, count, start, width)
        at, then = (i, count, start), (fetched, step)
        if not _multiply_into(x, row, column, panel, part, tile, k > 0, output, at, finish, levels, then):
            _multiply_tile(x, row, column, count, panel, part, tile, k > 0, fetched, step)
            finish_tile(tile, width, output, i, count, start, finish, levels)


@helper
def _multiply_tile(a, row, column, count, panel, depth, sums, accumulate, ahead, step):
    """sums (+)= the product of `count` rows of a with a block of a panel."""
    width = WEIGHT_PANEL_VECTORS * lanes(sums)
    if count > _HALF_ROWS and lie_packed(row, column):
        _packed_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    elif count > _HALF_ROWS:
        _full_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    elif count > 1:
        _half_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate, ahead, step)
    else:
        _row_tile(a, row, column, 0, panel, width, depth, sums, width, accumulate, ahead, step)


@by_types
def _multiply_into(a, row, column, panel, depth, sums, accumulate, output, place, finish, levels, meanwhile):
    """A whole tile's last product, written to the output; False, with nothing done, where that takes another way."""
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
        c, before = pointer(output, at), (sums, width, accumulate)
        added = pointer(bias, start), has_bias, pointer(residual, at), has_residual
        if lie_packed(row, column):
            _packed_output_tile(a, row, column, panel, width, depth, c, columns, *before, *added, ahead, step)
        else:
            _output_tile(a, row, column, panel, width, depth, c, columns, *before, *added, ahead, step)
        return True

    return multiply


# --- packed rows -----------------------------------------------------------------------------------------------------
#
# Rows packed for the tiles of a product (product.py), of floats or words of bytes, by the thread that multiplies
# them.
#
# What a tile reads next lies next in memory then, in one line instead of one for each of its rows. Rows as they lie
# come slowly from the second-level cache, and more slowly from beyond: it prefetches few streams at once.
#
# Measured on an Emerald Rapids (AVX-512, 2 threads, calls in turns): products of 1,024 rows and widths of 768 to
# 3,072 take 2 to 5 % less time, those of int8 with VNNI 1 to 3 %, up to depths of 768. Beside panels that are widened
# it is 2 to 7 % of bfloat16, 3 to 8 % of int8 in groups. Packing is bound by how fast one core reads rows from beyond
# its second-level cache (13 GB/s: 30 us for 128 rows of 768, half a panel's time; 15 us from within), which no
# prefetch changes: one thread packs most blocks (product.py).

# Room for a task's rows, which is to fit the second-level cache beside a panel: deep ones are fewer. With twice as much
# the product of depth 3,072 takes 3 % longer. None with AVX2, where BERT-base took no less time.
PACKED_BYTES = 128 * 1536 * 4 if isa.LEVEL.vector_bytes == 64 else 0
LEAST_PACKED = 32  # rows
LEAST_USES = 4  # panels that a thread expects to multiply packed rows by: packing takes half of one's time

_pack_tile = make_row_packer(WEIGHT_TILE_ROWS)


def are_packed(a, panels):
    """Whether rows of these types are packed where there are enough of them."""
    return PACKED_BYTES > 0 and (a.dtype != types.uint16 or are_widened(a, panels))


@inline_helper
def lie_packed(row, column):
    """Whether a tile's rows with these strides lie as `pack_rows` lays them."""
    return row == 1 and column == WEIGHT_TILE_ROWS


@inline_helper
def most_packed(depth, like):
    """How many rows of this depth there is room for."""
    return PACKED_BYTES // (itemsize(like) * depth) // WEIGHT_TILE_ROWS * WEIGHT_TILE_ROWS


@by_types
def pack_rows(a, strides, first, last, panels, room):
    """The rows from first to last as (tiles, depth, rows of a tile) in `room`.

    `strides` are (start of a tile, row, column, group). Gives what stands in for a and its strides; those themselves
    where the rows stay as they lie.
    """

    def pack(a, strides, first, last, panels, room):
        words = pointer_as(a, room)
        _, depth, column, _ = strides
        count = last - first
        if column != 1 or depth < lanes(room) or not LEAST_PACKED <= count <= most_packed(depth, room):
            return a, strides
        packed = pointer(room, -first * depth)
        for i in range(first, last, WEIGHT_TILE_ROWS):
            for k in range(0, depth, lanes(room)):
                for j in range(i + WEIGHT_TILE_ROWS, min(i + 2 * WEIGHT_TILE_ROWS, last)):
                    prefetch(words, j * depth + k)
                at = min(k, depth - lanes(room))
                target = pointer(packed, i * depth + at * WEIGHT_TILE_ROWS)
                _pack_tile(pointer(words, i * depth + at), depth, last - 1 - i, target)
        return pointer_as(packed, a), (depth, 1, WEIGHT_TILE_ROWS, max(WEIGHT_TILE_ROWS, lanes(room)) * depth)

    return pack if are_packed(a, panels) else lambda a, strides, first, last, panels, room: (a, strides)
