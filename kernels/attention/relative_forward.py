"""The forward kernel: attention's (attention/forward.py), with the terms of relative position added to its scores.

For a block of queries and keys the tables' rows are laid out once, a column for each distance between them, so that no
row is looked up per score and all is a product of matrices and a shift:

    content to position   p (queries) times the columns of A, their distances descending: the score of query i and key j
                          lies at column j - i of row i, which as a matrix with rows one element shorter is column j. It
                          is transposed as it is added to the scores, which are (keys, queries).
    position to content   K (keys) times the columns of B, their distances ascending: the scores of key j and a panel of
                          queries are neighbours, from column i - j on, and are added as they lie. A group of keys needs
                          one column more for each key than there are queries.

The segment term is one of two vectors of queries, chosen lane by lane for each key. Nothing is as large as the scores
of a whole sequence, and each result depends on its own query and the keys of its sequence alone.

Measured (Zen 4, 1 thread, 12 heads of 64, 8x128 and 1x512): with both tables 2.2 to 2.5 times as long as attention,
with one of them 1.5 to 1.8 times, with one and segments 1.6 to 1.7 times; bfloat16 the same.
"""

from numba import prange

from .._numba import helper, inline_helper, kernel
from .._numba.ladder import TILE_ROWS, multiply, pointer_to_word
from .._numba.operands import as_words, elements_per_word, lay_rows
from .._numba.panels import pack_panel, pack_strip
from .._numba.scores import row_pointer
from .._numba.simd import broadcast, lanes, load, pointer, select, store
from .forward import kernel_view, row_size, run
from .terms import add_terms, prepare_terms, terms_size, with_terms

KEY_ROWS = TILE_ROWS * 2 // 3  # of a tile of the keys' products, a power of two as the lanes are


@kernel(parallel=True)
def forward(
    query, query_strides, key, key_strides, value, value_strides, output, output_strides, probs, probs_strides,
    mask, mask_strides, position_key, position_key_strides, position_query, position_query_strides,
    query_for_position, query_for_position_strides, segment_scores, segment_scores_strides, lse, distance_rows,
    segment_ids, segment_ids_k, cu_seqlens, cu_seqlens_k, sizes, scale, storage, counter, tasks,
):  # fmt: skip
    """As attention's: of each array its first row and its strides in bytes; what is absent is empty."""
    if tasks == 1:
        arrays = query, key, value, output, probs, mask, mask[:0]
        strides = query_strides, key_strides, value_strides, output_strides, probs_strides, mask_strides, mask_strides
        terms = _terms(
            query_for_position, query_for_position_strides, position_key, position_key_strides,
            position_query, position_query_strides, distance_rows,
            segment_scores, segment_scores_strides, segment_ids, segment_ids_k,
        )  # fmt: skip
        run(arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, False, scale, storage, counter, terms)
    else:
        for _ in prange(tasks):
            arrays = query, key, value, output, probs, mask, mask[:0]
            strides = (
                query_strides, key_strides, value_strides, output_strides, probs_strides, mask_strides, mask_strides,
            )  # fmt: skip
            terms = _terms(
                query_for_position, query_for_position_strides, position_key, position_key_strides,
                position_query, position_query_strides, distance_rows,
                segment_scores, segment_scores_strides, segment_ids, segment_ids_k,
            )  # fmt: skip
            run(arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, False, scale, storage, counter, terms)


@inline_helper
def _terms(
    query_for_position, query_for_position_strides, position_key, position_key_strides,
    position_query, position_query_strides, distance_rows,
    segment_scores, segment_scores_strides, segment_ids, segment_ids_k,
):  # fmt: skip
    """((query for position, position_key), position_query, (rows, distance of the last), segments); see `forward`."""
    return (
        (kernel_view(query_for_position, query_for_position_strides), kernel_view(position_key, position_key_strides)),
        kernel_view(position_query, position_query_strides),
        (pointer(distance_rows, 0), len(distance_rows) // 2),
        (kernel_view(segment_scores, segment_scores_strides), pointer(segment_ids, 0), pointer(segment_ids_k, 0)),
    )


# --- the scratch of a block -------------------------------------------------------------------------


@inline_helper
def _group(like):
    """Keys whose products with the columns of B are computed at once."""
    return max(lanes(like), KEY_ROWS)


@inline_helper
def _whole(count, like):
    """`count` in whole vectors."""
    return row_size(count, like)


@inline_helper
def _columns(queries, keys, like):
    """Room for the distances of a block: an odd number of vectors, so that rows fall into different cache sets."""
    groups = (keys + _group(like) - 1) // _group(like)
    return ((_whole(queries, like) + groups * _group(like)) // lanes(like) + 1 | 1) * lanes(like)


@inline_helper
def _product_columns(keys, width, like):
    """Distances of a panel of queries and all keys."""
    return _whole(max(keys, lanes(like)) + width - 1, like)


@with_terms(terms_size)
def _terms_size(terms, queries, keys, head_dim, like):
    width, row = 2 * lanes(like), row_size(head_dim, like)
    rows = (width + TILE_ROWS) * row
    tables = 2 * head_dim * _columns(queries, keys, like)
    products = (width + TILE_ROWS) * _product_columns(keys, width, like)
    shifted = (keys + 2 * _group(like)) * (width + _group(like))
    return rows + tables + max(products, shifted) + 3 * width + TILE_ROWS * lanes(like)


@inline_helper
def _carve_scratch(scratch, block, head_dim):
    """(rows of the table or of queries, columns of A, columns of B, segments of a panel, products)."""
    first, last, _, keys = block
    columns, width = _columns(last - first, keys, scratch), 2 * lanes(scratch)
    key_table = pointer(scratch, (width + TILE_ROWS) * row_size(head_dim, scratch))
    query_table = pointer(key_table, head_dim * columns)
    segments = pointer(query_table, head_dim * columns)
    return scratch, key_table, query_table, segments, pointer(segments, 3 * width)


# --- what the panels of a block share ---------------------------------------------------------------


@with_terms(prepare_terms)
def _lay_tables(terms, place, block, k_words, head_dim, storage, scratch):
    """The columns of both tables for all distances of the block."""
    (_, position_key), position_query, rows, _ = terms
    first, last, begin, part = block
    _, h, _, queries, _, keys = place
    buffer, key_table, query_table, _, _ = _carve_scratch(scratch, block, head_dim)
    columns, group = _columns(last - first, part, scratch), _group(scratch)
    whole, groups = _whole(last - first, scratch), (part + group - 1) // group
    if position_key[0] != 0:
        highest = first + whole - 1 + keys - queries - begin
        count = whole + _whole(part, scratch)
        _lay_table(position_key, h, rows, highest, -1, count, head_dim, buffer, key_table, columns, storage)
    if position_query[0] != 0:
        lowest = first + keys - queries - begin - groups * group + 1
        count = whole + groups * group
        _lay_table(position_query, h, rows, lowest, 1, count, head_dim, buffer, query_table, columns, storage)


@helper
def _lay_table(table, h, rows, distance, step, count, head_dim, buffer, target, columns, storage):
    """A column for each of `count` distances, `step` apart; those beyond the last have its row."""
    row, per_word = row_size(head_dim, target), elements_per_word(storage)
    depth = (head_dim + per_word - 1) // per_word
    row_of, last = rows
    words = as_words(buffer, storage)
    for u in range(0, count, lanes(target)):
        for c in range(lanes(target)):
            d = min(max(distance + step * (u + c), -last), last)
            source = row_pointer(table, 0, h, row_of[d + last], target)
            lay_rows(source, 0, 1, head_dim, pointer_to_word(words, c * row), row, storage)
        pack_strip(buffer, row, 1, lanes(target), depth, pointer(target, u), columns)


# --- what each panel of queries adds ----------------------------------------------------------------


@with_terms(add_terms)
def _add_relative_terms(terms, place, block, i, count, width, k_words, head_dim, storage, scratch, scores, spare):
    (_, position_key), position_query, _, segments = terms
    if position_key[0] != 0:
        _add_content_to_position(terms[0], place, block, i, count, width, head_dim, storage, scratch, scores, spare)
    if position_query[0] != 0:
        _add_position_to_content(block, i, width, k_words, head_dim, storage, scratch, scores)
    if segments[0][0] != 0:
        _add_segments(segments, place, block, i, count, width, head_dim, scratch, scores)


@helper
def _add_content_to_position(terms, place, block, i, count, width, head_dim, storage, scratch, scores, spare):
    query_for_position, _ = terms
    s, h, start, _, _, _ = place
    first, last, _, part = block
    buffer, key_table, _, _, products = _carve_scratch(scratch, block, head_dim)
    row, per_word = row_size(head_dim, scratch), elements_per_word(storage)
    columns, used = _columns(last - first, part, scratch), _product_columns(part, width, scratch)
    words, at = as_words(buffer, storage), _whole(last - first, scratch) - width - (i - first)
    source = row_pointer(query_for_position, s, h, start + i, scratch)
    lay_rows(source, query_for_position[3], count, head_dim, words, row, storage)
    table, depth = pointer_to_word(as_words(key_table, storage), at), (head_dim + per_word - 1) // per_word
    multiply(words, row, 1, count, table, columns, depth, part + width - 1, products, used, False)
    keys = max(part, lanes(scores))  # whole blocks are transposed, of which the rest is not looked at
    pack_panel(pointer(products, width - 1), used - 1, 1, count, keys, spare, width)
    for j in range(0, part * width, lanes(scores)):
        store(scores, j, load(scores, j) + load(spare, j))


@helper
def _add_position_to_content(block, i, width, k_words, head_dim, storage, scratch, scores):
    first, last, _, part = block
    _, _, query_table, _, products = _carve_scratch(scratch, block, head_dim)
    row, per_word, group = row_size(head_dim, scratch), elements_per_word(storage), _group(scratch)
    columns, used = _columns(last - first, part, scratch), width + group
    table, depth = as_words(query_table, storage), (head_dim + per_word - 1) // per_word
    groups = (part + group - 1) // group
    for g in range(groups):
        at = i - first + (groups - 1 - g) * group
        for j in range(g * group, min(part, (g + 1) * group), KEY_ROWS):
            x, y, z = pointer_to_word(k_words, j * row), pointer_to_word(table, at), pointer(products, j * used)
            multiply(x, row, 1, min(KEY_ROWS, part - j), y, columns, depth, used - 1, z, used, False)
    for j in range(part):
        source, target = pointer(products, j * used + group - 1 - j % group), pointer(scores, j * width)
        for d in range(0, width, lanes(scores)):
            store(target, d, load(target, d) + load(source, d))


@helper
def _add_segments(terms, place, block, i, count, width, head_dim, scratch, scores):
    segment_scores, segment_ids, segment_ids_k = terms
    s, h, start, _, start_k, _ = place
    _, _, begin, part = block
    _, _, _, same, _ = _carve_scratch(scratch, block, head_dim)
    other, own = pointer(same, width), pointer(same, 2 * width)
    for c in range(width):
        of_query = row_pointer(segment_scores, s, h, start + i + min(c, count - 1), scratch)
        same[c], other[c], own[c] = of_query[0], of_query[1], segment_ids[start + i + min(c, count - 1)]
    for j in range(part):
        segment = segment_ids_k[start_k + begin + j]
        for d in range(0, width, lanes(scores)):
            chosen = select(load(own, d) == broadcast(scores, segment), load(same, d), load(other, d))
            store(scores, j * width + d, load(scores, j * width + d) + chosen)
