"""The products of content and relative position in the backward kernel (backward.py), and their gradients.

For one sequence and head the tables' rows are written by distance: those of A (position_key) descending, at key -
query, those of B (position_query) ascending, at query - key, both counted from 0. So are their gradients, which are
then added to their rows. For a block of rows of scores, (queries, keys):

    content to position   p A^T; the score of query r and key j is column j - r: rows are shifted. The gradients are
                          products of the rows of dS, shifted back, with A and p.
    position to content   for a panel of keys K B^T; column r - j of row j is the score: as a matrix with rows
                          one element shorter it is a square block, transposed. The gradients are products of dS^T, in
                          that layout, with B and K.

One task sums a part of the tables' gradients in the order of its sequences: the same bits for any number of threads.
In addition to attention's own, the scratch of a task is 6 times as large as the keys and queries of a sequence and
head, plus two blocks of scores.
"""

from ..._numba import helper, inline_helper
from ..._numba.low_precision.operands import lay_rows
from ..._numba.products.blocks import TILE_ROWS, clear, copy_scaled, multiply, row_pointer, whole_panels
from ..._numba.products.panels import SUM_DEPTH, pack_panel, pack_strip
from ..._numba.rows import rounded_up
from ..._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    pointer,
    reduce_add,
    select,
    store,
    store_masked,
)
from .backward import ROWS
from .forward import row_size
from .records import row_at, rows_of, segment_pointers, segments_of, view_of
from .terms import (
    add_terms_to_rows,
    backward_terms_of,
    backward_terms_size,
    begin_terms,
    differentiate_terms,
    finish_terms,
    with_terms,
)


@with_terms(backward_terms_of)
def _terms_of(step, relative):
    """Return arrays with their gradients, rows of distances, and the parts of the tables' gradients.

    In order: query for position, position_key, position_query with key, segment scores with segments.
    """
    return (
        (view_of(step.query_for_position), view_of(step.grad_query_for_position)),
        (view_of(step.position_key), view_of(step.grad_position_key)),
        (view_of(step.position_query), view_of(step.grad_position_query), view_of(step.key)),
        (view_of(step.segment_scores), view_of(step.grad_segment_scores), segments_of(step)),
        rows_of(step), step.parts,
    )  # fmt: skip


# --- the scratch of a sequence and head -------------------------------------------------------------


@inline_helper
def _distances(queries, keys, like):
    """Return the size for all distances, plus padding for panels and tiles at both ends."""
    return row_size(queries + keys + 2 * TILE_ROWS, like) + 4 * lanes(like)


@inline_helper
def _shifted_row(keys, like):
    """Return the elements of a row of all keys, shifted by up to ROWS."""
    return row_size(keys + ROWS + TILE_ROWS, like) + lanes(like)


@inline_helper
def _turned_row(like):
    """Return the elements of a key's row of the queries of a block, shifted by up to a panel."""
    return row_size(ROWS + TILE_ROWS, like) + 4 * lanes(like)


@with_terms(backward_terms_size)
def _backward_terms_size(terms, queries, keys, head_dim, like):
    columns, width, distances = whole_panels(head_dim, like), 2 * lanes(like), _distances(queries, keys, like)
    by_distance = 2 * (head_dim + 2 * columns) * distances
    of_tokens = (keys + TILE_ROWS + 2 * (ROWS + TILE_ROWS)) * columns + row_size(keys, like)
    shifted, turned = (ROWS + TILE_ROWS) * _shifted_row(keys, like), (width + TILE_ROWS) * _turned_row(like)
    return by_distance + of_tokens + shifted + turned + (ROWS + 2 * lanes(like)) * width


@inline_helper
def _carve_scratch(scratch, queries, keys, head_dim):
    """Return (table A, table B), (rows of keys, rows of p, gradient of p, key segments), (shifted, turned, spare).

    A table is (its columns, its rows, the gradients of the rows), by distance.
    """
    columns, width, distances = whole_panels(head_dim, scratch), 2 * lanes(scratch), _distances(queries, keys, scratch)
    a_rows = pointer(scratch, head_dim * distances)
    grad_a = pointer(a_rows, columns * distances)
    b_columns = pointer(grad_a, columns * distances)
    b_rows = pointer(b_columns, head_dim * distances)
    grad_b = pointer(b_rows, columns * distances)
    k_rows = pointer(grad_b, columns * distances)
    p_rows = pointer(k_rows, (keys + TILE_ROWS) * columns)
    grad_p = pointer(p_rows, (ROWS + TILE_ROWS) * columns)
    segments = pointer(grad_p, (ROWS + TILE_ROWS) * columns)
    shifted = pointer(segments, row_size(keys, scratch))
    turned = pointer(shifted, (ROWS + TILE_ROWS) * _shifted_row(keys, scratch))
    spare = pointer(turned, (width + TILE_ROWS) * _turned_row(scratch))
    tables = (scratch, a_rows, grad_a), (b_columns, b_rows, grad_b)
    return tables, (k_rows, p_rows, grad_p, segments), (shifted, turned, spare)


@with_terms(begin_terms)
def _begin_relative_terms(terms, place, head_dim, scratch):
    _, position_key, position_query, segments, rows, _ = terms
    s, h, h_k, _, queries, start_k, keys = place
    columns, distances = whole_panels(head_dim, scratch), _distances(queries, keys, scratch)
    tables, (k_rows, _, _, own), _ = _carve_scratch(scratch, queries, keys, head_dim)
    if position_key[0][0] != 0:
        _lay_table(position_key[0], h, rows, keys - 1, -1, head_dim, distances, tables[0])
    if position_query[0][0] != 0:
        _lay_table(position_query[0], h, rows, 1 - queries - 2 * lanes(scratch), 1, head_dim, distances, tables[1])
        key = position_query[2]
        lay_rows(row_pointer(key, s, h_k, start_k, scratch), key[3], keys, head_dim, k_rows, columns, scratch[0])
    if segments[0][0] != 0:
        _, segment_ids_k = segment_pointers(segments[2], s)
        for j in range(keys):
            own[j] = segment_ids_k[start_k + j]


@helper
def _lay_table(table, h, rows, distance, step, head_dim, count, target):
    """Write rows and columns of a table for `count` distances from the first on, and zeros as gradients."""
    as_columns, as_rows, grad = target
    columns = whole_panels(head_dim, grad)
    for u in range(count):
        source = row_pointer(table, 0, h, row_at(rows, distance + step * u), grad)
        lay_rows(source, 0, 1, head_dim, pointer(as_rows, u * columns), columns, grad[0])
    for u in range(0, count, lanes(grad)):
        pack_strip(pointer(as_rows, u * columns), columns, 1, lanes(grad), head_dim, pointer(as_columns, u), count)
    clear(grad, 0, count * columns)


# --- rows of scores ---------------------------------------------------------------------------------


@with_terms(add_terms_to_rows)
def _add_relative_terms(terms, place, block, head_dim, scratch, products, row):
    query_for_position, position_key, position_query, segments, _, _ = terms
    s, h, _, start, queries, _, keys = place
    first, count, low, seen = block
    (table_a, table_b), (k_rows, p_rows, _, own), spare = _carve_scratch(scratch, queries, keys, head_dim)
    if position_key[0][0] != 0:
        p, columns = query_for_position[0], whole_panels(head_dim, scratch)
        lay_rows(row_pointer(p, s, h, start + first, scratch), p[3], count, head_dim, p_rows, columns, scratch[0])
        _add_content_to_position(p_rows, table_a[0], queries, keys, block, head_dim, spare[0], products, row)
    if position_query[0][0] != 0:
        _add_position_to_content(k_rows, table_b[0], queries, keys, block, head_dim, spare, products, row)
    if segments[0][0] != 0:
        segment_ids, _ = segment_pointers(segments[2], s)
        for r in range(count):
            scores = row_pointer(segments[0], s, h, start + first + r, scratch)
            _add_segments(scores, segment_ids[start + first + r], pointer(own, low), seen, pointer(products, r * row))


@helper
def _add_content_to_position(p_rows, table, queries, keys, block, head_dim, shifted, products, row):
    first, count, low, seen = block
    columns, distances = whole_panels(head_dim, table), _distances(queries, keys, table)
    used, at = _shifted_row(seen, table), queries - first - count + low
    right = pointer(table, at)
    multiply(p_rows, columns, 1, count, right, distances, head_dim, seen + count - 1, shifted, used, False)
    for r in range(count):
        source, target = pointer(shifted, r * used + count - 1 - r), pointer(products, r * row)
        for j in range(0, seen, lanes(table)):
            store(target, j, load(target, j) + load(source, j))


@helper
def _add_position_to_content(k_rows, table, queries, keys, block, head_dim, scratch, products, row):
    _, turned, spare = scratch
    first, count, low, seen = block
    columns, distances = whole_panels(head_dim, table), _distances(queries, keys, table)
    width, used, depth = 2 * lanes(table), _turned_row(table), max(count, lanes(table))  # whole blocks are transposed
    for j in range(0, seen, width):
        part = min(width, seen - j)
        left, right = pointer(k_rows, (low + j) * columns), pointer(table, first + keys - low - j)
        multiply(left, columns, 1, part, right, distances, head_dim, depth + width - 1, turned, used, False)
        pack_panel(pointer(turned, width - 1), used - 1, 1, part, depth, spare, width)
        for r in range(count):
            target = pointer(products, r * row + j)
            for d in range(0, width, lanes(table)):
                store(target, d, load(target, d) + load(spare, r * width + d))


@helper
def _add_segments(scores, segment, of_keys, keys, products):
    for j in range(0, keys, lanes(products)):
        is_same = load_masked(of_keys, j, first_lanes(products, keys - j), 0.0) == broadcast(products, segment)
        chosen = select(is_same, broadcast(products, scores[0]), broadcast(products, scores[1]))
        store(products, j, load(products, j) + chosen)


# --- gradients --------------------------------------------------------------------------------------


@with_terms(differentiate_terms)
def _differentiate(terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k):
    query_for_position, position_key, position_query, segments, _, _ = terms
    s, h, _, start, queries, _, keys = place
    first, count, low, seen = block
    columns = whole_panels(head_dim, scratch)
    tables, (k_rows, p_rows, grad_p, own), (shifted, turned, _) = _carve_scratch(scratch, queries, keys, head_dim)
    if position_key[0][0] != 0:
        p = query_for_position[1]
        target = grad_q if p[0] == 0 else grad_p
        at = queries - first - count + low
        _differentiate_content_to_position(
            grad_scores, row, block, head_dim, p_rows, tables[0], at, shifted, target, p[0] == 0
        )
        for r in range(count if p[0] != 0 else 0):
            of_query = row_pointer(p, s, h, start + first + r, scratch)
            copy_scaled(pointer(grad_p, r * columns), scale, head_dim, of_query)
    if position_query[0][0] != 0:
        _differentiate_position_to_content(
            grad_scores, row, block, head_dim, pointer(k_rows, low * columns), tables[1], keys, turned, grad_k
        )
    if segments[0][0] != 0:
        segment_ids, _ = segment_pointers(segments[2], s)
        for r in range(count):
            target, segment = row_pointer(segments[1], s, h, start + first + r, scratch), segment_ids[start + first + r]
            same, other = _sum_segments(pointer(grad_scores, r * row), seen, segment, pointer(own, low))
            target[0], target[1] = scale * same, scale * other


@helper
def _differentiate_content_to_position(
    grad_scores, row, block, head_dim, p_rows, table, at, shifted, grad_p, accumulate
):  # fmt: skip
    """Write the gradient of p, and add this block's part to that of A."""
    _, count, _, seen = block
    _, rows, grad_rows = table
    columns, used = whole_panels(head_dim, rows), _shifted_row(seen, rows)
    clear(shifted, 0, count * used)
    for r in range(count):
        source, target = pointer(grad_scores, r * row), pointer(shifted, r * used + count - 1 - r)
        for j in range(0, seen, lanes(rows)):
            store_masked(target, j, load(source, j), first_lanes(rows, seen - j))
    distances = seen + count - 1
    for k in range(0, max(distances, 1), SUM_DEPTH):  # without distances the gradient is written, too
        left, right, part = pointer(shifted, k), pointer(rows, (at + k) * columns), min(SUM_DEPTH, distances - k)
        multiply(left, used, 1, count, right, columns, part, head_dim, grad_p, columns, accumulate or k > 0)
    whole = rounded_up(distances, TILE_ROWS)  # a partial tile would change other sums; the spare factors are zero
    multiply(shifted, 1, used, whole, p_rows, columns, count, head_dim, pointer(grad_rows, at * columns), columns, True)


@helper
def _differentiate_position_to_content(grad_scores, row, block, head_dim, k_rows, table, keys, turned, grad_k):
    """Add this block's part to the gradients of its keys and of B."""
    first, count, low, seen = block
    _, rows, grad_rows = table
    columns, used, width = whole_panels(head_dim, rows), _turned_row(rows), 2 * lanes(rows)
    clear(turned, 0, width * used)
    depth = count + width - 1
    for j in range(0, seen, width):
        part, at = min(width, seen - j), first + keys - low - j
        for r in range(0, count, lanes(rows)):
            source, target = pointer(grad_scores, r * row + j), pointer(turned, width - 1 + r)
            pack_strip(source, row, 1, count - r, part, target, used - 1)
        for c in range(part):  # padding behind the last query
            store(turned, c * (used - 1) + width - 1 + count, broadcast(rows, 0.0))
        right = pointer(rows, at * columns)
        multiply(turned, used, 1, part, right, columns, depth, head_dim, pointer(grad_k, j * columns), columns, True)
        left, target = pointer(k_rows, j * columns), pointer(grad_rows, at * columns)
        multiply(turned, 1, used, rounded_up(depth, TILE_ROWS), left, columns, part, head_dim, target, columns, True)


@helper
def _sum_segments(grad_scores, keys, segment, of_keys):
    """Return the sums of the gradients of a query's scores over keys of its segment, and over the others."""
    same = other = broadcast(grad_scores, 0.0)
    for j in range(0, keys, lanes(grad_scores)):
        inside = first_lanes(grad_scores, keys - j)
        grad = load_masked(grad_scores, j, inside, 0.0)
        is_same = load_masked(of_keys, j, inside, 0.0) == broadcast(grad_scores, segment)
        same += select(is_same, grad, 0.0)
        other += select(is_same, 0.0, grad)
    return reduce_add(same), reduce_add(other)


@with_terms(finish_terms)
def _finish(terms, place, head_dim, scale, scratch):
    """Add the gradients of a sequence's distances to those of the tables' rows."""
    _, position_key, position_query, _, rows, parts = terms
    s, h, _, _, queries, _, keys = place
    if queries == 0 or keys == 0:
        return
    ((_, _, grad_a), (_, _, grad_b)), _, _ = _carve_scratch(scratch, queries, keys, head_dim)
    columns, count, part = whole_panels(head_dim, scratch), queries + keys - 1, s % parts
    if position_key[0][0] != 0:
        _add_rows(grad_a, columns, count, keys - 1, -1, rows, head_dim, scale, position_key[1], part, h)
    if position_query[0][0] != 0:
        grad_b = pointer(grad_b, 2 * lanes(scratch) * columns)
        _add_rows(grad_b, columns, count, 1 - queries, 1, rows, head_dim, scale, position_query[1], part, h)


@helper
def _add_rows(source, columns, count, distance, step, rows, head_dim, scale, table, part, h):
    for u in range(count):
        target = row_pointer(table, part, h, row_at(rows, distance + step * u), source)
        for c in range(0, head_dim, lanes(source)):
            inside = first_lanes(source, head_dim - c)
            total = fma(load(source, u * columns + c), scale, load_masked(target, c, inside, 0.0))
            store_masked(target, c, total, inside)
