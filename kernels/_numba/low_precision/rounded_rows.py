"""Rows rounded to low precision as products with prepared weights read them: one after the other, or strips of tiles.

A strip is 16 rows, cut along the depth into tiles of 1 KB, one after the other (tile_product.py). Both have their depth
filled up, bfloat16 with zeros: to whole words, for tiles to whole tiles, and rows to whole strips, with anything.

HANDED says where a step that computes rows of float32 writes them in low precision, too, or instead: what reads them
then rounds nothing. They are the same numbers rounded in the same way, so that no bit depends on it.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from ..amx.tiles import TILE_ROWS, TILE_WORDS
from ..compile import by_types, helper, inline_helper, isa
from ..simd import first_lanes, itemsize, lanes, load, pointer, pointer_at, wide_pointer
from ..steps import ADDRESS, FLOAT, INT32, array_at, record
from . import LEVELS, ROUNDED, round_row, row_scale, store_bfloat16, store_levels

HANDED = record(
    ("address", ADDRESS),  # of ROUNDED or LEVELS; 0 if nobody asks for them
    ("zeros", ADDRESS),  # of bytes: each row's zero
    ("steps", ADDRESS),  # and its step
    ("factors", ADDRESS),  # what each column is multiplied by before that; 0 for nothing
    ("depth", np.intp),  # elements of a row
    ("is_alone", np.intp),  # whether nobody reads the float32
)
NOT_HANDED = (0,) * len(HANDED.names)
# The same of the heads that attention by tiles reads, in bfloat16: (heads, tokens, head_dim).
HEADS = record(
    ("address", ADDRESS),  # of ROUNDED; 0 if nobody asks for them
    ("first", np.intp),  # column from which on they are written; those before it are float32
    ("tokens", np.intp),
    ("head_dim", np.intp),
    ("is_alone", np.intp),  # whether nobody reads the float32 of these columns
)
NO_HEADS = (0,) * len(HEADS.names)
ROWS, DEPTH_WORDS = (TILE_ROWS, TILE_WORDS) if isa.LEVEL.tiles else (1, 1)  # both are filled up to multiples of these
_TILED = isa.LEVEL.tiles is not None
_ROUNDED, _LEVELS = ROUNDED(0), LEVELS(0)
_ARE_ROUNDED = ROUNDED is not np.float32  # beside weights in bfloat16


class RoundedRows(NamedTuple):
    """The arrays of rounded rows: the rows, and of bytes the zero and the step of each."""

    rows: object
    zeros: object
    steps: object


def whole_depth(width: int, per_word: int) -> int:
    """The elements of a rounded row of `width`, of which a word has so many."""
    size = per_word * DEPTH_WORDS
    return max(-(-width // size), 1) * size


def rows_of_bfloat16(empty, rows: int, width: int) -> RoundedRows:
    """Room for rows; `empty(shape, dtype)` gives an array."""
    return RoundedRows(empty((-(-rows // ROWS) * ROWS, whole_depth(width, 2)), ROUNDED), None, None)


def rows_of_bytes(empty, rows: int, width: int) -> RoundedRows:
    levels = empty((-(-rows // ROWS) * ROWS, whole_depth(width, 4)), LEVELS)
    return RoundedRows(levels, empty((rows,), np.int32), empty((rows,), np.float32))


# What makes room for the rows that weights multiply, by the type of their storage; not there where rows stay float32.
ROOM_BESIDE = {np.int8: rows_of_bytes} | ({np.uint16: rows_of_bfloat16} if _ARE_ROUNDED else {})

HEADS_BESIDE = frozenset(ROOM_BESIDE if _TILED else ())  # the types beside which attention reads heads, by tiles


def come_in_parts(width: int, part: int) -> bool:
    """Whether rows of bfloat16 can be written in parts of so many columns: nothing is to be filled up, and no vector
    ends in the next tile."""
    return whole_depth(width, 2) == width and (not _TILED or part % isa.lanes(types.float32) == 0)


# --- for compiled code ----------------------------------------------------------------------------


@inline_helper
def _place(i, k, depth, per_tile):
    """Where element k of row i lies in strips; `depth` and `per_tile`, of a tile's row, in elements."""
    inside = k % per_tile
    return i // TILE_ROWS * TILE_ROWS * depth + (k - inside) * TILE_ROWS + i % TILE_ROWS * per_tile + inside


@helper
def round_row_to(source, width, rounded, depth, i):
    """A row of float32 at a pointer as row i of bfloat16."""
    if _TILED:
        per_tile = 2 * TILE_WORDS
        for k in range(0, depth, per_tile):
            target = pointer(rounded, _place(i, k, depth, per_tile))
            round_row(pointer(source, k), min(width - k, per_tile), target, per_tile)
    else:
        round_row(wide_pointer(source, 0), width, pointer(rounded, i * depth), depth)


@helper
def quantize_row_to(source, width, factors, has_factors, levels, zeros, steps, depth, i):
    """A row of float32 at a pointer, times the factors if there are some, as row i of levels; its zero and step."""
    whole = wide_pointer(source, 0), wide_pointer(factors, 0), has_factors
    inverse, zero, steps[i] = row_scale(whole, width)
    zeros[i] = np.int32(zero)
    if _TILED:
        per_tile = 4 * TILE_WORDS
        for k in range(0, depth, per_tile):
            part = pointer(source, k), pointer(factors, k), has_factors
            target = pointer(levels, _place(i, k, depth, per_tile))
            store_levels(part, min(width - k, per_tile), inverse, zero, target, per_tile)
    else:
        store_levels(whole, width, inverse, zero, pointer(levels, i * depth), depth)


@inline_helper
def _place_of_bfloat16(i, k, depth):
    return _place(i, k, depth, 2 * TILE_WORDS) if _TILED else i * depth + k


@inline_helper
def store_rounded(rounded, depth, i, k, value, inside):
    """The lanes `inside` of a vector as elements of row i of bfloat16, from element k on, which is a multiple of the
    lanes."""
    store_bfloat16(rounded, _place_of_bfloat16(i, k, depth), value, inside)


@by_types
def hand_row(handed, storage, source, width, i):
    """Write a whole row of float32 at a pointer as row i, if somebody asks for it; `storage` is that of the weights."""

    def in_bfloat16(handed, storage, source, width, i):
        if handed.address != 0:
            round_row_to(source, width, pointer_at(handed.address, _ROUNDED), handed.depth, i)

    def in_bytes(handed, storage, source, width, i):
        if handed.address != 0:
            levels, factors = pointer_at(handed.address, _LEVELS), pointer_at(handed.factors, FLOAT)
            zeros, steps = pointer_at(handed.zeros, INT32), pointer_at(handed.steps, FLOAT)
            quantize_row_to(source, width, factors, handed.factors != 0, levels, zeros, steps, handed.depth, i)

    forms = {types.int8: in_bytes} | ({types.uint16: in_bfloat16} if _ARE_ROUNDED else {})
    return forms.get(storage, lambda handed, storage, source, width, i: None)


@inline_helper
def array_of_row(output, handed, i, first, rows, width):
    """The float32 output at an address, (rows * width,), for row i alone; `first` is the first row of its task.

    A row that nobody reads is written where that one is: it stays in the first-level cache.
    """
    place = first if handed.is_alone != 0 else i
    return array_at(output + (place - i) * width * itemsize(FLOAT), (rows * width,), FLOAT)


@by_types
def hand_part(handed, source, factor, count, i, k):
    """Write `count` elements, times a factor, to row i of bfloat16 from element k on, if somebody asks for them."""

    def in_bfloat16(handed, source, factor, count, i, k):
        if handed.address != 0:
            rounded = pointer_at(handed.address, _ROUNDED)
            for j in range(0, count, lanes(source)):
                inside = first_lanes(source, count - j)
                store_rounded(rounded, handed.depth, i, k + j, load(source, j) * factor, inside)

    if _ARE_ROUNDED and source.dtype == types.float32:
        return in_bfloat16
    return lambda handed, source, factor, count, i, k: None


@inline_helper
def hand_head(heads, source, token, head):
    """Write a head of float32 at a pointer, if somebody asks for it."""
    if heads.address != 0:
        size = heads.head_dim
        round_row(source, size, pointer_at(heads.address + (head * heads.tokens + token) * size * 2, _ROUNDED), size)


# --- what products write --------------------------------------------------------------------------


@inline_helper
def handed_sums(handed, heads):
    """What products take to write their output in bfloat16, too, as rows or as heads: a pointer; elements of a part of
    a row, whose rows follow one another; elements from a part to the next, and what 16 rows have between them beside;
    the first column; whether it is written, and whether it alone is.
    """
    if _TILED and heads.address != 0:
        across = heads.tokens * heads.head_dim
        place = pointer_at(heads.address, _ROUNDED), heads.head_dim, across, 0, heads.first
        return *place, True, heads.is_alone != 0
    part, tile = 2 * TILE_WORDS, 2 * TILE_WORDS * TILE_ROWS
    lengths = (part, tile, TILE_ROWS * handed.depth - tile) if _TILED else (handed.depth, 0, 0)
    return pointer_at(handed.address, _ROUNDED), *lengths, 0, handed.address != 0, handed.is_alone != 0


@inline_helper
def place_of_sums(handed, row, column):
    """Where a row's elements from a column on are written, those of one part."""
    _, part, across, down, _, _, _ = handed
    if _TILED:
        return column // part * across + column % part + row * part + row // TILE_ROWS * down
    return row * part + column
