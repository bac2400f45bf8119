"""The forward kernel of attention: softmax over the keys, for a vector of queries at a time.

Scores are computed transposed, (keys, queries), for a panel of queries: two vectors, one lane per query. Maximum and
sum of a query's softmax then run down a lane, without sums across lanes. Neither keys nor values are transposed: the
left operands of both products are rows in memory order, one of them the transposed scores (products.py; on CPUs with
AMX, tiles multiply bfloat16 and need transposed values).

A task is a block of up to QUERY_BLOCK queries of one sequence and head. It reads the keys in blocks of KEY_BLOCK and
updates the highest score and the sum of exponentials; earlier sums are rescaled when the highest score grows (online
softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Its scratch stays in the second-level cache, whatever the
length, and each result depends on its own query and the keys of its sequence alone.

With a window or causality a query attends to the keys of a band. In each block a panel computes the keys from the first
to the last that one of its queries attends to, the first rounded down to KEY_GRAIN. Blocks and grains begin at the same
keys for all queries, so that the order of a sum does not depend on them: hidden keys add zeros.
"""

import numpy as np

from ..._numba import helper, inline_helper, kernel, parallel_kernel
from ..._numba.dropout import BLOCK, COUNTERS, column_of, fill_factors_of_rows
from ..._numba.products.blocks import TILE_ROWS, row_pointer
from ..._numba.products.panels import pack_panel, prefetch_rows
from ..._numba.rows import rounded_up, share, take_task
from ..._numba.simd import first_lanes, lanes, load, pointer, select, store, store_masked
from .online_softmax import begin_softmax, continue_softmax, finish_probs, finish_softmax
from .products import (
    SPARE_KEYS,
    TILES_SIZE,
    begin_products,
    end_products,
    finish_sums,
    lay_keys,
    lay_queries,
    lay_values,
    multiply_queries,
    rescale_sums,
    weigh_values,
)
from .records import band, bits_row, row_at, rows_of, scratch_of, span, view_of, whole_lines
from .terms import add_terms, prepare_terms, terms_of, terms_size

QUERY_BLOCK = 256
KEY_BLOCK = 256
KEY_GRAIN = 16  # whole vectors and words
_BLOCK_GRAIN = 32  # whole tiles and grains; divides KEY_BLOCK
_SPARE_ROWS = TILE_ROWS + 4  # of scores: a tile's last rows, and the padding of the last wide vector


@parallel_kernel
def forward(steps, counter, like, storage, relative, task, tasks):
    """Compute attention of a record.

    `like` is a typed scalar of the arrays' dtype, `storage` the kind of operands (low_precision/operands.py),
    `relative` None or a marker (terms.py); `counter` gives the number of the next task.
    """
    run(steps[0], counter, like, storage, relative, task)


@kernel
def scratch_size(queries, keys, head_dim, relative, like):
    """Return the elements of a task's scratch for the longest sequences."""
    queries, keys = min(queries, QUERY_BLOCK), min(keys, KEY_BLOCK)
    own = _carve_scratch(queries, keys, head_dim, like)[-1]
    return whole_lines(own + terms_size(relative, queries, keys, head_dim, like)) + TILES_SIZE


@helper
def run(step, counter, like, storage, relative, task):
    """Compute tasks until all are done."""
    if task >= step.scratches:
        return
    views = (
        view_of(step.query), view_of(step.key), view_of(step.value), view_of(step.output), view_of(step.probs),
        view_of(step.mask), view_of(step.bias), view_of(step.lse),
    )  # fmt: skip
    terms, scratch = terms_of(step, relative), scratch_of(step, task, like)
    tiles = pointer(scratch, step.scratch_size - TILES_SIZE)
    begin_products(tiles, storage)
    s, before, block_task = 0, 0, take_task(counter)
    while s < step.sequences:
        start, queries = span(step.cu_seqlens, s, step.length)
        blocks = (queries + QUERY_BLOCK - 1) // QUERY_BLOCK
        if block_task < before + step.heads * blocks:
            h, block = divmod(block_task - before, blocks)
            panels, width = panel_count(queries, like), 2 * lanes(like)
            first, last = share(panels, block, blocks) * width, min(share(panels, block + 1, blocks) * width, queries)
            start_k, keys = span(step.cu_seqlens_k, s, step.length_k)
            place = s, h, start, queries, start_k, keys
            _attend(step, views, place, first, last, storage, terms, scratch, tiles)
            block_task = take_task(counter)
        else:
            before += step.heads * blocks
            s += 1
    end_products(tiles, storage)


@inline_helper
def panel_count(queries, like):
    return (queries + 2 * lanes(like) - 1) // (2 * lanes(like))


@inline_helper
def row_size(columns, like):
    """Round `columns` up to whole vectors."""
    return rounded_up(columns, lanes(like))


@inline_helper
def _carve_scratch(count, keys, head_dim, like):
    """Return the offsets within a task's scratch.

    After two wide vectors: each query's highest score and sum of exponentials so far, the factors that rescale a
    panel's sums, a panel of queries, sums, scores, spare scores, rows of keys, rows of values, biases by distance, and
    the scratch of the terms.
    """
    row, width, whole = row_size(head_dim, like), 2 * lanes(like), panel_count(count, like) * 2 * lanes(like)
    peaks = 4 * width
    totals = peaks + whole
    factors = totals + whole
    panel = factors + width
    sums = panel + width * row
    scores = sums + (whole + TILE_ROWS) * row
    spare = scores + (keys + _SPARE_ROWS) * width
    # a copy of the scores, of a panel of queries, or of a square block of scores
    k_rows = spare + max(keys + _SPARE_ROWS, row, width) * width
    v_rows = k_rows + (keys + SPARE_KEYS) * row
    biases = v_rows + (keys + SPARE_KEYS) * row
    rest = biases + row_size(whole + keys, like) + width
    return peaks, totals, factors, panel, sums, scores, spare, k_rows, v_rows, biases, rest


@helper
def _attend(step, views, place, first, last, storage, terms, scratch, tiles):
    """Compute the outputs of the queries from first to last of one sequence and head."""
    query, key, value, _, probs, mask, bias, _ = views
    s, h, start, queries, start_k, keys = place
    head_dim, scale, h_k = step.head_dim, step.scale, h // step.sharing
    below, above = band(step, queries, keys)
    count, row, width = last - first, row_size(head_dim, scratch), 2 * lanes(scratch)
    starts = _carve_scratch(count, min(keys, KEY_BLOCK), head_dim, scratch)
    peaks, totals, factors, panel, sums, scores, spare, k_rows, v_rows, biases, rest = _pointers(scratch, starts)
    state = scratch, peaks, totals, factors
    # Vectors are padded with -inf, which a scale that is not positive would change.
    is_banded = queries - 1 + below > 0 or above + 1 < keys
    has_biases = step.position_bias.address != 0
    stored = is_banded or has_biases or probs[0] != 0 or mask[0] != 0 or bias[0] != 0 or not scale > 0
    factor = 1.0 if stored else scale  # stored scores are already scaled
    begin_softmax(state, count)
    prefetch_rows(row_pointer(query, s, h, start + first, sums), query[3], 0, min(width, count), head_dim)
    low, end = max(first + below, 0) // _BLOCK_GRAIN * _BLOCK_GRAIN, min(max(last + above, 0), keys)
    begin = low
    while begin < end or begin == low:
        part = max(min((begin // KEY_BLOCK + 1) * KEY_BLOCK, end) - begin, 0)
        k, v = row_pointer(key, s, h_k, start_k + begin, sums), row_pointer(value, s, h_k, start_k + begin, sums)
        # Without a copy, rows of a joined query, key and value would map to few sets of the first-level cache.
        lay_keys(k, key[3], part, head_dim, k_rows, row, storage)
        lay_values(v, value[3], part, head_dim, v_rows, row, spare, storage)
        block = first, last, begin, part
        if has_biases:
            _lay_biases(step, place, block, biases)
        prepare_terms(terms, place, block, head_dim, storage, rest)
        for i in range(first, last, width):
            n = min(width, last - i)
            skip = min(max(i + below - begin, 0) // KEY_GRAIN * KEY_GRAIN, part)
            seen = max(min(part, i + n + above - begin) - skip, 0)
            if seen == 0 and begin > low:
                continue
            w = lanes(sums) if n <= lanes(sums) else width
            q = row_pointer(query, s, h, start + i, sums)
            lay_queries(q, query[3], n, head_dim, panel, w, spare, storage)
            multiply_queries(tiles, pointer(k_rows, skip * row), row, seen, head_dim, panel, w, scores, storage)
            of_panel = i, n, w, skip, seen
            add_terms(terms, tiles, place, block, of_panel, k_rows, head_dim, storage, rest, scores, spare)
            if stored:
                _scale(scores, seen * w, scale)
                if has_biases:
                    _add_biases(biases, block, of_panel, scores)
                _add_masks(views, s, h, block, of_panel, below, above, scores, spare)
            continue_softmax(scores, seen, w, factor, state, i - first, storage)
            if step.threshold != 0:
                _drop(step, place, begin + skip, of_panel, scores, spare)
            target = pointer(sums, (i - first) * row)
            if begin > low:
                rescale_sums(target, n, w, row, factors, storage)
            weigh_values(
                tiles, scores, w, n, v_rows, row, skip, seen, part, head_dim, target, begin > low, spare, storage
            )  # fmt: skip
        begin += max(part, 1)
    for i in range(first, last, width):
        w = lanes(sums) if last - i <= lanes(sums) else width
        finish_sums(pointer(sums, (i - first) * row), w, row, spare, storage)
    finish_softmax(views, place, first, count, head_dim, sums, row, state, step.keep)
    if probs[0] != 0:
        for i in range(count):
            panel_first = first + i // width * width
            written = max(panel_first + below, 0) // KEY_GRAIN * KEY_GRAIN
            panel_end = min(max(min(panel_first + width, last) + above, 0), keys)
            finish_probs(row_pointer(probs, s, h, first + i, sums), written, panel_end, peaks[i], totals[i])


@helper
def _drop(step, place, begin, panel, scores, factors):
    """Write zeros where dropout removes the exponential of a query of the panel and a key from `begin` on.

    A vector holds the bits of the panel's queries, like the scores; one query after the other is 1.4 times slower.
    """
    s, h, start, _, _, _ = place
    i, _, width, _, seen = panel
    whole, row, heads = 2 * lanes(scores), bits_row(step, s, h, start + i), np.uint64(step.heads)
    for counter in range(begin // BLOCK * COUNTERS, (begin + seen + BLOCK - 1) // BLOCK * COUNTERS):
        fill_factors_of_rows(factors, step.seed, row, heads, counter, step.threshold, np.float32(1), whole)
        for word in range(4):
            j = column_of(counter, word) - begin
            for d in range(0, width if 0 <= j < seen else 0, lanes(scores)):
                is_kept = load(factors, word * whole + d) > 0.0
                store(scores, j * width + d, select(is_kept, load(scores, j * width + d), 0.0))


@inline_helper
def _pointers(scratch, starts):
    peaks, totals, factors, panel, sums, scores, spare, k_rows, v_rows, biases, rest = starts
    return (
        pointer(scratch, peaks), pointer(scratch, totals), pointer(scratch, factors), pointer(scratch, panel),
        pointer(scratch, sums), pointer(scratch, scores), pointer(scratch, spare), pointer(scratch, k_rows),
        pointer(scratch, v_rows), pointer(scratch, biases), pointer(scratch, rest),
    )  # fmt: skip


@helper
def _scale(scores, count, scale):
    for j in range(0, count, lanes(scores)):
        store(scores, j, load(scores, j) * scale)


# --- biases and masks of scaled scores --------------------------------------------------------------


@helper
def _lay_biases(step, place, block, biases):
    """Write the biases of a block by ascending distance, from that of the first query and the last key on."""
    _, h, _, queries, _, keys = place
    first, last, begin, part = block
    table, rows = view_of(step.position_bias), rows_of(step)
    lowest = first + keys - queries - begin - part + 1
    for u in range(panel_count(last - first, biases) * 2 * lanes(biases) + part):
        biases[u] = row_pointer(table, 0, h, row_at(rows, lowest + u), biases)[0]


@helper
def _add_biases(biases, block, panel, scores):
    """Add biases; those of a key and the panel's queries are neighbours."""
    first, _, _, part = block
    i, _, width, skip, seen = panel
    for j in range(seen):
        source = pointer(biases, i - first + part - 1 - skip - j)
        for d in range(0, width, lanes(scores)):
            store(scores, j * width + d, load(scores, j * width + d) + load(source, d))


@helper
def _add_masks(views, s, h, block, panel, below, above, scores, spare):
    """Add mask and bias, hide keys outside the band, and write the scores to the probabilities if wanted."""
    _, _, _, _, probs, mask, bias, _ = views
    first, count, width, skip, seen = panel
    begin = block[2] + skip
    for added in (bias, mask):
        if added[0] != 0:
            source = pointer(row_pointer(added, s, h, first, scores), begin)
            pack_panel(source, added[3], 1, count, seen, spare, width)
            for j in range(0, seen * width, lanes(scores)):
                store(scores, j, load(scores, j) + load(spare, j))
    for j in range(min(max(first + count - 1 + below - begin, 0), seen)):  # hidden from the last queries
        for d in range(0, width, lanes(scores)):
            visible = first_lanes(scores, begin + j - below - first - d + 1)
            store(scores, j * width + d, select(visible, load(scores, j * width + d), -np.inf))
    for j in range(max(first + above + 1 - begin, 0), seen):  # hidden from the first queries
        for d in range(0, width, lanes(scores)):
            hidden = first_lanes(scores, begin + j - above - first - d)
            store(scores, j * width + d, select(hidden, -np.inf, load(scores, j * width + d)))
    if probs[0] != 0:
        for j in range(0, seen, 2 * lanes(scores)):
            pack_panel(pointer(scores, j * width), width, 1, seen - j, count, spare, 2 * lanes(scores))
            for i in range(count):
                target = pointer(row_pointer(probs, s, h, first + i, scores), begin)
                _copy(pointer(spare, i * 2 * lanes(scores)), min(seen - j, 2 * lanes(scores)), pointer(target, j))


@helper
def _copy(source, count, target):
    for j in range(0, count, lanes(source)):
        store_masked(target, j, load(source, j), first_lanes(source, count - j))
