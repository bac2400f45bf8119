"""The product of rows with packed panels on AMX tiles, of bfloat16 and of bytes.

Panels are 32 columns wide, and rows of the left operand are stored in strips (low_precision). Both depths are padded to
whole tiles: bfloat16 with zeros, bytes on the right only. Rows beyond the last one may hold anything.

A block of sums is 2 x 2 tiles, 32 rows and 32 columns, which stay in registers for the whole depth. The complete block
is written to scratch, and to the output during the next block: bias, activation, stores and prefetches then run while
the tile unit works. A task multiplies as many rows as fit in the second-level cache with one panel, and prefetches the
panel of the next task. The order of a sum depends on the depth alone.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..compile import helper, inline_helper
from ..low_precision.operands import as_words
from ..memory import CACHE_LINE
from ..products.epilogue import apply_epilogue, prefetch_tile
from ..rows import share, take_task
from ..simd import aligned, pointer
from ..simd.codegen import emit_prefetch
from ..steps import FLOAT
from .tiles import (
    TILE_ELEMENTS,
    TILE_ROWS,
    TILE_WORDS,
    begin_tiles,
    end_tiles,
    load_tile,
    multiply_bfloat16,
    multiply_int8,
    store_tile,
    zero_tile,
)

PANEL_COLUMNS = 32
_BLOCK_BYTES = 768 * 1024  # of rows
_BLOCK = 4 * TILE_ELEMENTS  # sums
_TILE_BYTES, _ROW_BYTES = TILE_WORDS * 4, PANEL_COLUMNS * 4
_LINES = TILE_WORDS * _ROW_BYTES // CACHE_LINE  # of a panel, for a tile's depth


@intrinsic
def _prefetch_line(typingctx, source, line):
    """Prefetch line number `line` after a pointer into the second-level cache; any address is safe."""

    def codegen(context, builder, sig, args):
        at = builder.bitcast(args[0], ir.IntType(8).as_pointer())
        emit_prefetch(builder, builder.gep(at, [builder.mul(args[1], args[1].type(CACHE_LINE))]), level=2)
        return context.get_dummy_value()

    return types.void(source, types.intp), codegen


def _make_block(multiply):
    """Make a helper for the product of a block by one of the tile instructions."""

    @inline_helper
    def multiply_block(
        state, has_two, x, panel, depth, sums, target, waiting, fetched, lines, output, epilogue, scaling
    ):
        """Compute the sums of 16 or 32 rows and a panel; send the block before, `waiting`, to the output meanwhile."""
        before, row, count, column = waiting
        first, rows, start = target
        steps = depth // TILE_WORDS
        each, each_line, done = (count + steps - 1) // steps, (rows + steps - 1) // steps, 0
        zero_tile(state, 0)
        zero_tile(state, 1)
        if has_two:
            zero_tile(state, 2)
            zero_tile(state, 3)
        for k in range(steps):
            left, right = pointer(x, k * TILE_ELEMENTS), pointer(panel, k * TILE_WORDS * PANEL_COLUMNS)
            load_tile(state, 4, left, _TILE_BYTES)
            load_tile(state, 6, right, _ROW_BYTES)
            multiply(state, 0, 4, 6)
            load_tile(state, 7, pointer(right, TILE_WORDS), _ROW_BYTES)
            multiply(state, 1, 4, 7)
            if has_two:
                load_tile(state, 5, pointer(left, TILE_ROWS * depth), _TILE_BYTES)
                multiply(state, 2, 5, 6)
                multiply(state, 3, 5, 7)
            if done < count:
                part = min(each, count - done)
                place = pointer(before, done * PANEL_COLUMNS)
                apply_epilogue(place, PANEL_COLUMNS, output, row + done, part, column, epilogue, scaling)
                done += part
            lines_left = min(each_line, rows - k * each_line)
            prefetch_tile(output, first + k * each_line, lines_left, start, PANEL_COLUMNS)
            for line in range(lines):
                _prefetch_line(fetched, k * lines + line)
        store_tile(state, 0, sums, _ROW_BYTES)
        store_tile(state, 1, pointer(sums, TILE_WORDS), _ROW_BYTES)
        if has_two:
            store_tile(state, 2, pointer(sums, TILE_ROWS * PANEL_COLUMNS), _ROW_BYTES)
            store_tile(state, 3, pointer(sums, TILE_ROWS * PANEL_COLUMNS + TILE_WORDS), _ROW_BYTES)

    return multiply_block


def _make_product(multiply):
    """Make the product by one of the tile instructions.

    run(x, depth, panels, output, epilogue, scaling, counter, scratch): compute tasks of output = activation(x @ panels
    + bias) + residual until all are done.

    x: an array of strips; each row has `depth` words, a multiple of TILE_WORDS.
    panels: (panels, depth, PANEL_COLUMNS), in words along the depth.
    epilogue, scaling: as for `run_product` (products).
    counter: the number of tasks taken so far.
    scratch: TILES_SCRATCH elements of the dtype of the sums, float32 or int32.
    """
    multiply_block = _make_block(multiply)

    @helper
    def run(x, depth, panels, output, epilogue, scaling, counter, scratch):
        rows, count = output.shape[0], panels.shape[0]
        strips, strip = (rows + TILE_ROWS - 1) // TILE_ROWS, TILE_ROWS * depth
        most = max(_BLOCK_BYTES // (4 * strip), 2)
        blocks = (strips + most - 1) // most
        sums = aligned(scratch)
        state = as_words(pointer(sums, 2 * _BLOCK), FLOAT)
        left, right = as_words(pointer(x, 0), FLOAT), as_words(pointer(panels, 0), FLOAT)
        at, waiting = 0, (pointer(sums, _BLOCK), 0, 0, 0)
        begin_tiles(state)
        task = take_task(counter)
        while task < blocks * count:
            following = take_task(counter)
            block, p = divmod(task, count)
            first, last = share(strips, block, blocks), share(strips, block + 1, blocks)
            pairs = (last - first + 1) // 2
            lines = (_LINES + pairs - 1) // pairs
            panel = pointer(right, p * depth * PANEL_COLUMNS)
            ahead = pointer(right, following % count * depth * PANEL_COLUMNS)
            for i in range(first, last, 2):
                strip_of, own = pointer(left, i * strip), pointer(sums, at * _BLOCK)
                fetched = pointer(ahead, (i - first) // 2 * lines * (depth // TILE_WORDS) * (CACHE_LINE // 4))
                target = i * TILE_ROWS, min(rows - i * TILE_ROWS, 2 * TILE_ROWS), p * PANEL_COLUMNS
                if i + 1 < last:
                    multiply_block(state, True, strip_of, panel, depth, own, target, waiting, fetched, lines, output,
                                   epilogue, scaling)  # fmt: skip
                else:
                    target = target[0], min(target[1], TILE_ROWS), target[2]
                    multiply_block(state, False, strip_of, panel, depth, own, target, waiting, fetched, lines, output,
                                   epilogue, scaling)  # fmt: skip
                at, waiting = 1 - at, (own, target[0], target[1], target[2])
            task = following
        end_tiles()
        before, row, waiting_rows, column = waiting
        apply_epilogue(before, PANEL_COLUMNS, output, row, waiting_rows, column, epilogue, scaling)

    return run


multiply_strips_bfloat16 = _make_product(multiply_bfloat16)
multiply_strips_int8 = _make_product(multiply_int8)
