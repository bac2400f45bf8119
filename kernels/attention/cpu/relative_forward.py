"""The products of content and relative position that the forward kernel (forward.py) adds to its scores.

For a block of queries and keys the tables' rows are written once, one column per distance, so that no score looks up a
row: each term is a matrix product and a shift.

    content to position   p (queries) times the columns of A, by descending distance: the score of query i and key j is
                          column j - i of row i. Seen as a matrix with rows one element shorter that is column j. It is
                          transposed as it is added to the scores, which are (keys, queries).
    position to content   K (keys) times the columns of B, by ascending distance: the scores of key j and a panel of
                          queries are neighbours, from column i - j on, and are added as they lie. A group of keys needs
                          one column more for each key than there are queries.

The segment term is one of two vectors of queries, selected lane by lane for each key. No scratch is as large as the
scores of a whole sequence, and each result depends on its own query and the keys of its sequence alone.
"""

from ..._numba import helper, inline_helper
from ..._numba.amx.tiles import TILE_WORDS
from ..._numba.products.blocks import TILE_ROWS, row_pointer
from ..._numba.products.panels import pack_panel, pack_strip
from ..._numba.simd import broadcast, lanes, load, pointer, select, store
from .forward import row_size
from .products import KEY_ROWS, depth_of_terms, lay_keys, multiply_terms, rows_of_terms
from .records import row_at, rows_of, segment_pointers, segments_of, view_of
from .terms import add_terms, prepare_terms, terms_of, terms_size, with_terms


@with_terms(terms_of)
def _terms_of(step, relative):
    """Return ((query for position, position_key), position_query, rows of distances, (segment scores, ids))."""
    return (
        (view_of(step.query_for_position), view_of(step.position_key)),
        view_of(step.position_query), rows_of(step), (view_of(step.segment_scores), segments_of(step)),
    )  # fmt: skip


# --- the scratch of a block -------------------------------------------------------------------------


@inline_helper
def _group(like):
    """Return how many keys are multiplied with the columns of B at once."""
    return max(lanes(like), KEY_ROWS)


@inline_helper
def _table_depth(head_dim):
    """Return the most words of the depth of a table."""
    return max(head_dim, TILE_WORDS)


@inline_helper
def _columns(queries, keys, like):
    """Return the columns for the distances of a block: an odd number of vectors, for different cache sets."""
    groups = (keys + _group(like) - 1) // _group(like)
    return ((row_size(queries, like) + groups * _group(like)) // lanes(like) + 1 | 1) * lanes(like)


@inline_helper
def _product_columns(keys, width, like):
    """Return the number of distances of a panel of queries and all keys."""
    return row_size(max(keys, lanes(like)) + width - 1, like)


@with_terms(terms_size)
def _terms_size(terms, queries, keys, head_dim, like):
    width, row = 2 * lanes(like), row_size(head_dim, like)
    rows = (width + TILE_ROWS) * row
    tables = 2 * _table_depth(head_dim) * _columns(queries, keys, like)
    products = (width + TILE_ROWS) * _product_columns(keys, width, like)
    shifted = (keys + 2 * _group(like)) * (width + _group(like))
    return rows + tables + max(products, shifted) + 3 * width + TILE_ROWS * lanes(like)


@inline_helper
def _carve_scratch(scratch, block, head_dim):
    """Return (rows of the table or of queries, columns of A, columns of B, segments of a panel, products)."""
    first, last, _, keys = block
    columns, width = _columns(last - first, keys, scratch), 2 * lanes(scratch)
    key_table = pointer(scratch, (width + TILE_ROWS) * row_size(head_dim, scratch))
    query_table = pointer(key_table, _table_depth(head_dim) * columns)
    segments = pointer(query_table, _table_depth(head_dim) * columns)
    return scratch, key_table, query_table, segments, pointer(segments, 3 * width)


# --- shared by the panels of a block ----------------------------------------------------------------


@with_terms(prepare_terms)
def _lay_tables(terms, place, block, head_dim, storage, scratch):
    """Write the columns of both tables for all distances of the block."""
    (_, position_key), position_query, rows, _ = terms
    first, last, begin, part = block
    _, h, _, queries, _, keys = place
    buffer, key_table, query_table, _, _ = _carve_scratch(scratch, block, head_dim)
    columns, group = _columns(last - first, part, scratch), _group(scratch)
    whole, groups = row_size(last - first, scratch), (part + group - 1) // group
    if position_key[0] != 0:
        highest = first + whole - 1 + keys - queries - begin
        count = whole + row_size(part, scratch)
        _lay_table(position_key, h, rows, highest, -1, count, head_dim, buffer, key_table, columns, storage)
    if position_query[0] != 0:
        lowest = first + keys - queries - begin - groups * group + 1
        count = whole + groups * group
        _lay_table(position_query, h, rows, lowest, 1, count, head_dim, buffer, query_table, columns, storage)


@helper
def _lay_table(table, h, rows, distance, step, count, head_dim, buffer, target, columns, storage):
    """Write a column for each of `count` distances, `step` apart."""
    row, depth = row_size(head_dim, target), depth_of_terms(head_dim, storage)
    for u in range(0, count, lanes(target)):
        for c in range(lanes(target)):
            source = row_pointer(table, 0, h, row_at(rows, distance + step * (u + c)), target)
            lay_keys(source, 0, 1, head_dim, pointer(buffer, c * row), row, storage)
        pack_strip(buffer, row, 1, lanes(target), depth, pointer(target, u), columns)


# --- added by each panel of queries -----------------------------------------------------------------


@with_terms(add_terms)
def _add_relative_terms(terms, tiles, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare):
    (_, position_key), position_query, _, segments = terms
    if position_key[0] != 0:
        _add_content_to_position(terms[0], tiles, place, block, panel, head_dim, storage, scratch, scores, spare)
    if position_query[0] != 0:
        _add_position_to_content(tiles, block, panel, k_rows, head_dim, storage, scratch, scores)
    if segments[0][0] != 0:
        _add_segments(segments, place, block, panel, head_dim, scratch, scores)


@helper
def _add_content_to_position(terms, tiles, place, block, panel, head_dim, storage, scratch, scores, spare):
    query_for_position, _ = terms
    s, h, start, _, _, _ = place
    first, last, _, part = block
    i, count, width, skip, seen = panel
    buffer, key_table, _, _, products = _carve_scratch(scratch, block, head_dim)
    row, at = row_size(head_dim, scratch), row_size(last - first, scratch) - width - (i - first) + skip
    columns, used = _columns(last - first, part, scratch), _product_columns(seen, width, scratch)
    source, table = row_pointer(query_for_position, s, h, start + i, scratch), pointer(key_table, at)
    lay_keys(source, query_for_position[3], count, head_dim, buffer, row, storage)
    multiply_terms(tiles, buffer, row, count, head_dim, table, columns, seen + width - 1, products, used, storage)
    keys = max(seen, lanes(scores))  # whole blocks are transposed; the rest is not read
    pack_panel(pointer(products, width - 1), used - 1, 1, count, keys, spare, width)
    for j in range(0, seen * width, lanes(scores)):
        store(scores, j, load(scores, j) + load(spare, j))


@helper
def _add_position_to_content(tiles, block, panel, k_rows, head_dim, storage, scratch, scores):
    first, last, _, part = block
    i, _, width, skip, seen = panel
    _, _, query_table, _, products = _carve_scratch(scratch, block, head_dim)
    row, group = row_size(head_dim, scratch), _group(scratch)
    columns, used = _columns(last - first, part, scratch), width + group
    groups, end = (part + group - 1) // group, skip + seen
    for g in range(skip // group, (end + group - 1) // group):
        table, step = pointer(query_table, i - first + (groups - 1 - g) * group), rows_of_terms(storage)
        for j in range(g * group, min(end, (g + 1) * group), step):
            rows, own, count = pointer(k_rows, j * row), pointer(products, j * used), min(step, end - j)
            multiply_terms(tiles, rows, row, count, head_dim, table, columns, used - 1, own, used, storage)
    for j in range(skip, end):
        source, target = pointer(products, j * used + group - 1 - j % group), pointer(scores, (j - skip) * width)
        for d in range(0, width, lanes(scores)):
            store(target, d, load(target, d) + load(source, d))


@helper
def _add_segments(terms, place, block, panel, head_dim, scratch, scores):
    segment_scores, segments = terms
    s, h, start, _, start_k, _ = place
    i, count, width, skip, seen = panel
    segment_ids, segment_ids_k = segment_pointers(segments, s)
    _, _, _, same, _ = _carve_scratch(scratch, block, head_dim)
    other, own = pointer(same, width), pointer(same, 2 * width)
    for c in range(width):
        at = start + i + min(c, count - 1)
        of_query = row_pointer(segment_scores, s, h, at, scratch)
        same[c], other[c], own[c] = of_query[0], of_query[1], segment_ids[at]
    for j in range(seen):
        segment = segment_ids_k[start_k + block[2] + skip + j]
        for d in range(0, width, lanes(scores)):
            chosen = select(load(own, d) == broadcast(scores, segment), load(same, d), load(other, d))
            store(scores, j * width + d, load(scores, j * width + d) + chosen)
