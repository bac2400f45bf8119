"""The products of attention's forward and the layout of their operands: by vectors, or in bfloat16 by AMX tiles.

By vectors the left operand of both main products is rows of words: keys, and the transposed scores. The sums are rows
of the output. Tiles read the left operand 16 words at a time and cannot transpose it, so the values are transposed
instead, once for all panels of queries, and the sums are columns of the output until `finish_sums`. Depths and scores
are padded with zeros to whole tiles. Terms of relative position (relative_forward.py) are rows times a table's columns.

`storage` is the kind of operands (low_precision/operands.py); `tiles` is the tiles' state in scratch.
"""

from numba import types

from ..._numba import LEVEL, by_types, helper, inline_helper
from ..._numba.amx.tiles import (
    STATE_SIZE,
    TILE_ROWS,
    TILE_WORDS,
    begin_tiles,
    end_tiles,
    load_tile,
    multiply_bfloat16,
    store_tile,
    zero_tile,
)
from ..._numba.low_precision import round_row
from ..._numba.low_precision.operands import (
    AHEAD,
    as_words,
    elements_per_word,
    lay_columns,
    lay_depth,
    lay_rows,
)
from ..._numba.products.blocks import TILE_ROWS as VECTOR_TILE_ROWS
from ..._numba.products.blocks import multiply, pointer_to_word
from ..._numba.products.panels import pack_panel, prefetch_rows
from ..._numba.products.tile import transpose_block
from ..._numba.rows import rounded_up
from ..._numba.simd import broadcast, first_lanes, lanes, load, load_masked, pointer, store
from ..._numba.steps import BFLOAT16
from .online_softmax import rescale

TILES_SIZE = STATE_SIZE if LEVEL.tiles else 0  # elements of a task's scratch
SPARE_KEYS = TILE_ROWS if LEVEL.tiles else 1  # rows after the keys and the values
KEY_ROWS = VECTOR_TILE_ROWS * 2 // 3  # of a tile of vectors, a power of two as the lanes are
_PAIR_ROWS, _TILE_KEYS = 2 * TILE_ROWS, 2 * TILE_WORDS


def _are_tiles(storage):
    return LEVEL.tiles and storage == types.uint16


@by_types
def begin_products(tiles, storage):
    """Prepare for the products of a task."""
    return _begin_tiles if _are_tiles(storage) else _nothing_to_begin


@by_types
def end_products(tiles, storage):
    """Release the tiles after the last product of a task."""
    return _end_tiles if _are_tiles(storage) else _nothing_to_begin


@by_types
def lay_keys(source, source_row, count, head_dim, target, row, storage):
    """Write (count, head_dim) floats at a pointer as rows of words at `target`, `row` words apart."""
    return _lay_keys_by_tiles if _are_tiles(storage) else _lay_keys


@by_types
def lay_queries(source, source_row, count, head_dim, panel, width, spare, storage):
    """Write (count, head_dim) floats at a pointer as a panel with a column for each row; `spare` holds as many."""
    return _lay_queries_by_tiles if _are_tiles(storage) else _lay_queries


@by_types
def lay_values(source, source_row, count, head_dim, target, row, spare, storage):
    """Write (count, head_dim) floats at a pointer in the layout that `weigh_values` reads."""
    return _lay_values_by_tiles if _are_tiles(storage) else _lay_values


@by_types
def multiply_queries(tiles, keys, row, count, head_dim, panel, width, scores, storage):
    """Compute scores (count, width) = keys @ panel, for `count` rows of keys."""
    return _multiply_queries_by_tiles if _are_tiles(storage) else _multiply_queries


@by_types
def depth_of_terms(head_dim, storage):
    """Return the depth, in words, of the products of relative terms."""
    return _depth_of_terms_by_tiles if _are_tiles(storage) else _depth_of_terms


@by_types
def rows_of_terms(storage):
    """Return the best number of rows for `multiply_terms`, a power of two."""
    return _rows_of_terms_by_tiles if _are_tiles(storage) else _rows_of_terms


@by_types
def multiply_terms(tiles, rows, row, count, head_dim, columns, width, used, products, products_row, storage):
    """Compute products (count, used) = rows @ columns; whole tiles of products are written.

    `count` rows are stored like keys, `row` words apart; `used` columns have `depth_of_terms` words, `width` apart.
    """
    return _multiply_terms_by_tiles if _are_tiles(storage) else _multiply_terms


@by_types
def weigh_values(
    tiles, scores, width, queries, values, row, skip, seen, keys, head_dim, sums, accumulate, spare, storage
):
    """Compute sums (+)= the values of `seen` keys from key `skip` on, weighted by scores (seen, width).

    There are `values` of `keys` keys; only the seen ones are multiplied, because zero times infinity is NaN.
    """
    return _weigh_values_by_tiles if _are_tiles(storage) else _weigh_values


@by_types
def rescale_sums(sums, queries, width, row, factors, storage):
    """Multiply the sums of each query by its factor."""
    return _rescale_columns if _are_tiles(storage) else _rescale_rows


@by_types
def finish_sums(sums, width, row, spare, storage):
    """Turn the sums of a panel of queries into rows of `row` elements."""
    return _transpose_sums if _are_tiles(storage) else _nothing_to_finish


# --- by vectors -----------------------------------------------------------------------------------


def _nothing_to_begin(tiles, storage):
    pass


def _lay_keys(source, source_row, count, head_dim, target, row, storage):
    lay_rows(source, source_row, count, head_dim, as_words(target, storage), row, storage)


def _lay_values(source, source_row, count, head_dim, target, row, spare, storage):
    lay_depth(source, source_row, count, head_dim, target, row, storage)


def _lay_queries(source, source_row, count, head_dim, panel, width, spare, storage):
    lay_columns(source, source_row, count, head_dim, panel, width, spare, storage)


def _multiply_queries(tiles, keys, row, count, head_dim, panel, width, scores, storage):
    multiply_terms(tiles, keys, row, count, head_dim, panel, width, width, scores, width, storage)


def _depth_of_terms(head_dim, storage):
    per_word = elements_per_word(storage)
    return (head_dim + per_word - 1) // per_word


def _rows_of_terms(storage):
    return KEY_ROWS


def _multiply_terms(tiles, rows, row, count, head_dim, columns, width, used, products, products_row, storage):
    a, b, depth = as_words(rows, storage), as_words(columns, storage), depth_of_terms(head_dim, storage)
    multiply(a, row, 1, count, b, width, depth, used, products, products_row, False)


def _weigh_values(
    tiles, scores, width, queries, values, row, skip, seen, keys, head_dim, sums, accumulate, spare, storage
):
    per_word = elements_per_word(storage)
    own = pointer_to_word(as_words(values, storage), skip // per_word * row)
    deep = (seen + per_word - 1) // per_word
    last, second_half = pointer_to_word(own, (deep - 1) * row), as_words(spare, storage)
    holds_one_beyond = seen % per_word != 0 and skip + seen < keys
    # In a separate product the last word would be rounded twice: bits would depend on where panels end.
    for d in range(row if holds_one_beyond else 0):
        second_half[d], last[2 * d + 1] = last[2 * d + 1], 0
    multiply(as_words(scores, storage), 1, width, queries, own, row, deep, head_dim, sums, row, accumulate)
    for d in range(row if holds_one_beyond else 0):
        last[2 * d + 1] = second_half[d]


def _rescale_rows(sums, queries, width, row, factors, storage):
    rescale(sums, queries, row, factors)


def _nothing_to_finish(sums, width, row, spare, storage):
    pass


# --- by tiles -------------------------------------------------------------------------------------


def _begin_tiles(tiles, storage):
    begin_tiles(tiles)


def _end_tiles(tiles, storage):
    end_tiles()


@inline_helper
def _value_row(keys):
    """Return the words of a row of transposed values."""
    return rounded_up(keys, _TILE_KEYS) // 2


@helper
def _round_rows(source, source_row, count, depth, target, row):
    """Write rows of bfloat16 at `target`, `row` words apart, padded to whole tiles with zeros."""
    for i in range(count):
        prefetch_rows(source, source_row, i + AHEAD, i + AHEAD + 1, depth)
        to = as_words(pointer(target, i * row), BFLOAT16)
        round_row(pointer(source, i * source_row), depth, to, rounded_up(depth, 2 * TILE_WORDS))


def _lay_keys_by_tiles(source, source_row, count, head_dim, target, row, storage):
    _round_rows(source, source_row, count, head_dim, target, row)


def _lay_queries_by_tiles(source, source_row, count, head_dim, panel, width, spare, storage):
    words = rounded_up(head_dim, 2 * TILE_WORDS) // 2
    _round_rows(source, source_row, count, head_dim, spare, words)
    pack_panel(spare, words, 1, count, words, panel, width)


def _lay_values_by_tiles(source, source_row, count, head_dim, target, row, spare, storage):
    """Write values transposed, (head_dim in whole tiles, words of two keys), 32 keys at a time."""
    target_row = _value_row(count)
    for j in range(0, count, _TILE_KEYS):
        part = min(_TILE_KEYS, count - j)
        lay_depth(pointer(source, j * source_row), source_row, part, head_dim, spare, row, storage)
        for k in range((part + 1) // 2 * row, TILE_WORDS * row, lanes(spare)):
            store(spare, k, broadcast(spare, 0.0))
        for d in range(0, row, TILE_ROWS):
            transpose_block(
                pointer(spare, d), row, TILE_WORDS - 1, pointer(target, d * target_row + j // 2), target_row
            )


@inline_helper
def _multiply_tiles(tiles, tall, wide, a, a_row, b, b_row, depth, c, c_row, accumulate):
    """Compute c (+)= a @ b, for one or two tiles of c each way; strides and depth in words, depth in whole tiles."""
    right, below = pointer(c, TILE_WORDS), pointer(c, TILE_ROWS * c_row)
    diagonal = pointer(below, TILE_WORDS)
    if accumulate:
        load_tile(tiles, 0, c, 4 * c_row)
        if wide:
            load_tile(tiles, 1, right, 4 * c_row)
        if tall:
            load_tile(tiles, 2, below, 4 * c_row)
        if tall and wide:
            load_tile(tiles, 3, diagonal, 4 * c_row)
    else:
        zero_tile(tiles, 0)
        zero_tile(tiles, 1)
        zero_tile(tiles, 2)
        zero_tile(tiles, 3)
    for k in range(0, depth, TILE_WORDS):
        load_tile(tiles, 4, pointer(a, k), 4 * a_row)
        load_tile(tiles, 6, pointer(b, k * b_row), 4 * b_row)
        multiply_bfloat16(tiles, 0, 4, 6)
        if wide:
            load_tile(tiles, 7, pointer(b, k * b_row + TILE_WORDS), 4 * b_row)
            multiply_bfloat16(tiles, 1, 4, 7)
        if tall:
            load_tile(tiles, 5, pointer(a, TILE_ROWS * a_row + k), 4 * a_row)
            multiply_bfloat16(tiles, 2, 5, 6)
        if tall and wide:
            multiply_bfloat16(tiles, 3, 5, 7)
    store_tile(tiles, 0, c, 4 * c_row)
    if wide:
        store_tile(tiles, 1, right, 4 * c_row)
    if tall:
        store_tile(tiles, 2, below, 4 * c_row)
    if tall and wide:
        store_tile(tiles, 3, diagonal, 4 * c_row)


@helper
def _multiply_panel(tiles, a, a_row, rows, b, b_row, depth, columns, c, c_row, accumulate):
    """Compute c (+)= a @ b for 16 or 32 columns; whole tiles of c are written."""
    for i in range(0, rows, _PAIR_ROWS):
        x, y = pointer(a, i * a_row), pointer(c, i * c_row)
        if rows - i > TILE_ROWS:
            if columns > TILE_WORDS:
                _multiply_tiles(tiles, True, True, x, a_row, b, b_row, depth, y, c_row, accumulate)
            else:
                _multiply_tiles(tiles, True, False, x, a_row, b, b_row, depth, y, c_row, accumulate)
        elif columns > TILE_WORDS:
            _multiply_tiles(tiles, False, True, x, a_row, b, b_row, depth, y, c_row, accumulate)
        else:
            _multiply_tiles(tiles, False, False, x, a_row, b, b_row, depth, y, c_row, accumulate)


def _multiply_queries_by_tiles(tiles, keys, row, count, head_dim, panel, width, scores, storage):
    depth = depth_of_terms(head_dim, storage)
    _multiply_panel(tiles, keys, row, count, panel, width, depth, width, scores, width, False)


def _depth_of_terms_by_tiles(head_dim, storage):
    return rounded_up(head_dim, 2 * TILE_WORDS) // 2


def _rows_of_terms_by_tiles(storage):
    return TILE_ROWS


def _multiply_terms_by_tiles(tiles, rows, row, count, head_dim, columns, width, used, products, products_row, storage):
    depth = depth_of_terms(head_dim, storage)
    for j in range(0, used, 2 * TILE_WORDS):
        b, c = pointer(columns, j), pointer(products, j)
        _multiply_panel(tiles, rows, row, count, b, width, depth, used - j, c, products_row, False)


@helper
def _copy_keys(values, value_row, first, count, row, target):
    """Copy the words of `count` keys, at most a tile's, of all rows of transposed values, padded with zeros."""
    words, odd = (count + 1) // 2, count % 2 == 1
    inside = first_lanes(target, words)
    for d in range(row):
        own = pointer(target, d * TILE_WORDS)
        store(own, 0, load_masked(values, d * value_row + first // 2, inside, 0.0))
        if odd:
            as_words(own, BFLOAT16)[count] = 0


def _weigh_values_by_tiles(
    tiles, scores, width, queries, values, row, skip, seen, keys, head_dim, sums, accumulate, spare, storage
):
    end = (seen + 1) // 2 * width
    for j in range(end, end + TILE_WORDS * width, lanes(scores)):
        store(scores, j, broadcast(scores, 0.0))
    value_row, done, add = _value_row(keys), 0, accumulate
    while done < seen or not add:
        first, left = skip + done, seen - done
        count = min(_TILE_KEYS - first % _TILE_KEYS, left)
        if first % _TILE_KEYS == 0 and (count == _TILE_KEYS or first + count == keys):
            count = left if first + left == keys else left // _TILE_KEYS * _TILE_KEYS
            own, own_row = pointer(values, first // 2), value_row
        else:
            _copy_keys(values, value_row, first, count, row, spare)
            own, own_row = spare, TILE_WORDS
        own_scores, deep = pointer(scores, done // 2 * width), rounded_up(count, _TILE_KEYS) // 2
        _multiply_panel(tiles, own, own_row, row, own_scores, width, deep, width, sums, width, add)
        done, add = done + count, True


def _rescale_columns(sums, queries, width, row, factors, storage):
    for d in range(0, row * width, width):
        for j in range(0, width, lanes(sums)):
            store(sums, d + j, load(sums, d + j) * load(factors, j))


def _transpose_sums(sums, width, row, spare, storage):
    for d in range(0, row, TILE_ROWS):
        for j in range(0, width, TILE_WORDS):
            transpose_block(pointer(sums, d * width + j), width, TILE_ROWS - 1, pointer(spare, j * row + d), row)
    for j in range(0, width * row, lanes(sums)):
        store(sums, j, load(spare, j))
