"""Rows packed for the tiles of a product (product.py), of floats or words of bytes, by the thread that multiplies them.

What a tile reads next lies next in memory then, in one line instead of one for each of its rows. Rows as they lie come
slowly from the second-level cache, and more slowly from beyond: it prefetches few streams at once.

Measured on an Emerald Rapids (AVX-512, 2 threads, calls in turns): products of 1,024 rows and widths of 768 to
3,072 take 2 to 5 % less time, those of int8 with VNNI 1 to 3 %, up to depths of 768. Beside panels that are widened
it is 2 to 7 % of bfloat16, 3 to 8 % of int8 in groups. Packing is bound by how fast one core reads rows from beyond its
second-level cache (13 GB/s: 30 us for 128 rows of 768, half a panel's time; 15 us from within), which no prefetch
changes: one thread packs most blocks (product.py).
"""

from numba import types

from . import isa
from .jit import by_types, inline_helper
from .simd import itemsize, lanes, pointer, pointer_as, prefetch
from .tile import WEIGHT_TILE_ROWS, make_row_packer
from .widening import are_widened

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
