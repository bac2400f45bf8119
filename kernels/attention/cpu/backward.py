"""The backward kernel of attention: whole rows of probabilities in scratch, by sequence and head.

A task packs the keys and values of a sequence and head into panels. By register tiles it then computes for a few dozen
queries at a time their probabilities, the gradients of these, and their parts of the gradients of keys and values. With
a window or causality a row holds only the keys that a query of its block attends to, from a whole panel on. One task
sums the query heads that share a key head, one after another.

The scratch of a task is 5 times as large as the keys of one sequence and head, plus two blocks of scores.
"""

import numpy as np

from ..._numba import helper, inline_helper, kernel, parallel_kernel
from ..._numba.dropout import BLOCK, keep_factors
from ..._numba.products.blocks import (
    MOST_TILES,
    TILE_ROWS,
    clear,
    copy_scaled,
    row_address,
    row_pointer,
    rows_at_once,
    scores_size,
    whole_panels,
)
from ..._numba.products.panels import multiply_panels, pack_columns, pack_rows
from ..._numba.rows import rounded_up, take_task
from ..._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    itemsize,
    lanes,
    load,
    load_masked,
    pointer,
    pointer_at,
    reduce_add,
    select,
    store,
    store_masked,
)
from ..._numba.simd.math import exp
from .records import band, bits_row, row_at, rows_of, scratch_of, view_of, whole_lines
from .terms import (
    add_terms_to_rows,
    backward_terms_of,
    backward_terms_size,
    begin_terms,
    differentiate_terms,
    finish_terms,
)

ROWS = MOST_TILES * TILE_ROWS  # the most queries of a block


@parallel_kernel
def backward(steps, sequences, counter, like, relative, task, tasks):
    """Compute the gradients of a record.

    `sequences` holds first query, queries, first key and keys of each; other arguments are those of the forward kernel.
    A task is a group of sequences and heads that add to the same gradient, or one sequence and head.
    """
    run(steps[0], sequences, counter, like, relative, task)


@kernel
def scratch_size(queries, keys, visible, head_dim, relative, like):
    """Return the elements of a task's scratch for the longest sequences; a query attends to at most `visible` keys."""
    own = _carve_scratch(queries, keys, visible, head_dim, like)[-1]
    return whole_lines(own + backward_terms_size(relative, queries, keys, head_dim, like))


@helper
def run(step, sequences, counter, like, relative, task):
    """Compute groups until all are done."""
    terms, scratch = backward_terms_of(step, relative), scratch_of(step, task, like)
    group, heads_k = take_task(counter), step.heads // step.sharing
    while group < step.parts * step.head_parts:
        for s in range(group // step.head_parts, len(sequences), step.parts):
            for h_k in range(group % step.head_parts, heads_k, step.head_parts):
                _differentiate(step, sequences, s, h_k, terms, scratch)
        group = take_task(counter)


# --- the scratch of a sequence and head -------------------------------------------------------------


@inline_helper
def row_length(keys, visible, like):
    """Return the elements of a row of scores for the keys that a block of queries attends to."""
    return whole_panels(min(keys, visible + ROWS + TILE_ROWS + 2 * lanes(like)), like)


@inline_helper
def _carve_scratch(queries, keys, visible, head_dim, like):
    """Return the offsets within a task's scratch.

    After the panels of K^T: panels of V^T and K, sums for dK and dV, P, dP or dS, panels of queries and of grad_output,
    sums for dQ, biases by distance and their gradients, dropout's factors for a row, and the scratch of the terms.
    """
    whole, columns, row = whole_panels(keys, like), whole_panels(head_dim, like), row_length(keys, visible, like)
    value_panels = whole * head_dim
    key_columns = value_panels + whole * head_dim
    grad_k = key_columns + keys * columns
    grad_v = grad_k + (keys + TILE_ROWS) * columns
    probs = grad_v + (keys + TILE_ROWS) * columns
    grad_scores = probs + scores_size(row)
    query_panels = grad_scores + scores_size(row)
    grad_panels = query_panels + ROWS * columns
    grad_q = grad_panels + ROWS * columns
    biases = grad_q + ROWS * columns
    grad_biases = biases + whole_panels(queries + keys, like)
    kept = grad_biases + whole_panels(queries + keys, like)
    rest = kept + row + 2 * BLOCK
    return (
        value_panels, key_columns, grad_k, grad_v, probs, grad_scores, query_panels, grad_panels, grad_q, biases,
        grad_biases, kept, rest,
    )  # fmt: skip


@inline_helper
def _packed(scratch, starts):
    """Return pointers to the panels of K^T, V^T and K, and to dK and dV."""
    value_panels, key_columns, grad_k, grad_v = starts[:4]
    return (
        scratch, pointer(scratch, value_panels), pointer(scratch, key_columns), pointer(scratch, grad_k),
        pointer(scratch, grad_v),
    )  # fmt: skip


@helper
def _differentiate(step, sequences, s, h_k, terms, scratch):
    """Compute all gradients of sequence s and the heads that share the key head h_k."""
    key, value, head_dim = view_of(step.key), view_of(step.value), step.head_dim
    start, queries, start_k, keys = sequences[s, 0], sequences[s, 1], sequences[s, 2], sequences[s, 3]
    columns, visible = whole_panels(head_dim, scratch), min(keys, step.visible)
    starts = _carve_scratch(queries, keys, visible, head_dim, scratch)
    key_panels, value_panels, key_columns, grad_k, grad_v = _packed(scratch, starts)
    rest = pointer(scratch, starts[12])
    k, v = row_pointer(key, s, h_k, start_k, scratch), row_pointer(value, s, h_k, start_k, scratch)
    pack_rows(k, key[3], keys, head_dim, key_panels)
    pack_rows(v, value[3], keys, head_dim, value_panels)
    pack_columns(k, key[3], keys, head_dim, key_columns)
    clear(grad_k, 0, keys * columns)
    clear(grad_v, 0, keys * columns)
    rows = rows_at_once(row_length(keys, visible, scratch))
    for h in range(h_k * step.sharing, (h_k + 1) * step.sharing):
        place = s, h, h_k, start, queries, start_k, keys
        _begin_biases(step, place, pointer(scratch, starts[9]), pointer(scratch, starts[10]))
        begin_terms(terms, place, head_dim, rest)
        for i in range(0, queries, rows):
            _differentiate_rows(step, place, i, min(rows, queries - i), scratch, starts, terms)
        finish_terms(terms, place, head_dim, step.scale, rest)
        _finish_biases(step, place, pointer(scratch, starts[10]))
    grad_key, grad_value = view_of(step.grad_key), view_of(step.grad_value)
    for j in range(keys):
        of_key = row_pointer(grad_key, s, h_k, start_k + j, scratch)
        of_value = row_pointer(grad_value, s, h_k, start_k + j, scratch)
        copy_scaled(pointer(grad_k, j * columns), step.scale, head_dim, of_key)
        copy_scaled(pointer(grad_v, j * columns), step.keep, head_dim, of_value)


# --- rows of scores ---------------------------------------------------------------------------------


@helper
def _differentiate_rows(step, place, first, count, scratch, starts, terms):
    """Write the gradients of `count` queries, and add their part to those of keys, values and biases."""
    s, h, _, start, queries, _, keys = place
    query, grad_output, head_dim, scale = view_of(step.query), view_of(step.grad_output), step.head_dim, step.scale
    key_panels, value_panels, key_columns, grad_k, grad_v = _packed(scratch, starts)
    probs, grad_scores, grad_q = pointer(scratch, starts[4]), pointer(scratch, starts[5]), pointer(scratch, starts[8])
    query_panels, grad_panels = pointer(scratch, starts[6]), pointer(scratch, starts[7])
    rest = pointer(scratch, starts[12])
    below, above = band(step, queries, keys)
    width, columns = 2 * lanes(scratch), whole_panels(head_dim, scratch)
    row = row_length(keys, min(keys, step.visible), scratch)
    low = min(max(first + below, 0), keys) // width * width
    end = min(max(first + count + above, 0), keys)
    # Whole tiles: a tile's spare rows would change the sums of hidden keys.
    seen = max(min(keys - low, rounded_up(end - low, TILE_ROWS)), 0)
    q, g = row_pointer(query, s, h, start + first, scratch), row_pointer(grad_output, s, h, start + first, scratch)
    k, v = pointer(key_panels, low * head_dim), pointer(value_panels, low * head_dim)
    multiply_panels(q, query[3], 1, count, k, head_dim, head_dim, seen, probs, row, False)
    multiply_panels(g, grad_output[3], 1, count, v, head_dim, head_dim, seen, grad_scores, row, False)
    block = first, count, low, seen
    add_terms_to_rows(terms, place, block, head_dim, rest, probs, row)
    biases, grad_biases = pointer(scratch, starts[9]), pointer(scratch, starts[10])
    kept = pointer(scratch, starts[11])
    for r in range(count):
        p, d, i = pointer(probs, r * row), pointer(grad_scores, r * row), first + r
        seen_keys = min(max(i + below - low, 0), seen), min(max(min(i + above + 1, keys) - low, 0), seen)
        at = low - i + queries - 1  # the biases of a query are contiguous
        of_biases = pointer(biases, at), pointer(grad_biases, at)
        _differentiate_row(step, place, i, low, seen_keys, seen, p, d, kept, *of_biases)
    pack_columns(q, query[3], count, head_dim, query_panels)
    pack_columns(g, grad_output[3], count, head_dim, grad_panels)
    k, grad_k, grad_v = (
        pointer(key_columns, low * width),
        pointer(grad_k, low * columns),
        pointer(grad_v, low * columns),
    )
    multiply_panels(grad_scores, row, 1, count, k, keys, seen, head_dim, grad_q, columns, False)
    multiply_panels(grad_scores, 1, row, seen, query_panels, count, count, head_dim, grad_k, columns, True)
    multiply_panels(probs, 1, row, seen, grad_panels, count, count, head_dim, grad_v, columns, True)
    differentiate_terms(terms, place, block, head_dim, scale, rest, grad_scores, row, grad_q, grad_k)
    grad_query = view_of(step.grad_query)
    for r in range(count):
        target = row_pointer(grad_query, s, h, start + first + r, scratch)
        copy_scaled(pointer(grad_q, r * columns), scale, head_dim, target)


@helper
def _differentiate_row(step, place, i, low, seen_keys, seen, probs, grad, kept, biases, grad_biases):
    """Turn products of query i with the keys from `low` on into probabilities, and their gradients into the scores'.

    Hidden keys get zeros; the gradients are also added to those of the biases. Dropout removes probabilities and their
    gradients, but the scores' gradients need all probabilities: `kept` holds dropout's factors.
    """
    s, h, _, start, _, _, _ = place
    begin, end = seen_keys
    lse, grad_bias = row_pointer(view_of(step.lse), s, h, start + i, probs), view_of(step.grad_bias)
    mask, bias = row_address(view_of(step.mask), s, h, i, probs), row_address(view_of(step.bias), s, h, i, probs)
    offset, has_biases = low * itemsize(probs), step.position_bias.address != 0
    shift = lse[0] if lse[0] != -np.inf else 0 * lse[1]
    log_total, along, first = lse[1], broadcast(probs, 0.0), begin // lanes(probs) * lanes(probs)
    drops = step.threshold != 0
    if drops:
        kept = keep_factors(step.seed, bits_row(step, s, h, start + i), step.threshold, np.float32(1), kept, low, seen)
    clear(probs, 0, first)
    clear(grad, 0, first)
    for j in range(first, end, lanes(probs)):
        inside = first_lanes(probs, end - j) & ~first_lanes(probs, begin - j)
        score = load(probs, j) * step.scale
        if has_biases:
            score += load(biases, j)
        if bias != 0:
            score += load_masked(pointer_at(bias + offset, probs), j, inside, 0.0)
        if mask != 0:
            score += load_masked(pointer_at(mask + offset, probs), j, inside, 0.0)
        p = exp(select(inside, score, -np.inf) - shift - log_total)
        g = select(inside, load(grad, j) * step.keep, 0.0)
        if drops:
            g = select(load(kept, j) > 0.0, g, 0.0)
        store(probs, j, p)
        store(grad, j, g)
        along = fma(p, g, along)
    mean = broadcast(probs, reduce_add(along))
    for j in range(first, end, lanes(probs)):
        p = load(probs, j)
        store(grad, j, p * (load(grad, j) - mean))
        if drops:
            store(probs, j, select(load(kept, j) > 0.0, p, 0.0))
    clear(probs, max(first, end), seen)
    clear(grad, max(first, end), seen)
    if grad_bias[0] != 0:
        _add(grad, begin, end, pointer(row_pointer(grad_bias, s, h, i, probs), low))
    if has_biases:
        _add(grad, begin, end, grad_biases)


@helper
def _add(source, begin, end, target):
    """Compute target += source from `begin` to `end`."""
    for j in range(begin // lanes(source) * lanes(source), end, lanes(source)):
        inside = first_lanes(source, end - j) & ~first_lanes(source, begin - j)
        store_masked(target, j, load_masked(target, j, inside, 0.0) + load(source, j), inside)


# --- biases by distance -----------------------------------------------------------------------------


@helper
def _begin_biases(step, place, biases, grad_biases):
    """Write biases of all distances, descending as the keys ascend, and zeros as their gradients."""
    _, h, _, _, queries, _, keys = place
    if step.position_bias.address != 0:
        table, rows = view_of(step.position_bias), rows_of(step)
        for u in range(queries + keys):
            biases[u] = row_pointer(table, 0, h, row_at(rows, keys - 1 - u), biases)[0]
        clear(grad_biases, 0, queries + keys)


@helper
def _finish_biases(step, place, grad_biases):
    """Add the gradients of a sequence's distances to those of the table's rows."""
    s, h, _, _, queries, _, keys = place
    if step.position_bias.address != 0:
        table, rows = view_of(step.grad_position_bias), rows_of(step)
        for u in range(queries + keys - 1):
            row_pointer(table, s % step.parts, h, row_at(rows, keys - 1 - u), grad_biases)[0] += grad_biases[u]
