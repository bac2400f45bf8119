"""The forward kernel of attention: softmax over the keys, a vector of queries at a time.

Scores are computed transposed, (keys, queries), for a panel of queries: two vectors, one lane per query. The maximum
and the sum of a query's softmax then run down a lane, without sums across lanes, and neither keys nor values have to be
transposed: the left operands of both products are rows as they lie in memory, the transposed scores being one.

A task is a block of up to QUERY_BLOCK queries of one sequence and head. It goes through the keys in blocks of
KEY_BLOCK, of which the highest score and the sum of exponentials are carried on, the sums so far being rescaled when
the highest score grows (online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Its scratch stays in the
second-level cache, whatever the length (0.3 MB for head_dim 64), and each result depends on its own query and the keys
of its sequence alone.
"""

import numpy as np
from numba import prange

from .._numba import helper, inline_helper, kernel
from .._numba.ladder import TILE_ROWS, multiply
from .._numba.operands import as_words, elements_per_word, lay_columns, lay_depth, lay_rows
from .._numba.panels import pack_panel, prefetch_rows
from .._numba.rows import share
from .._numba.scores import row_pointer
from .._numba.simd import (
    aligned,
    first_lanes,
    lanes,
    load,
    pointer,
    select,
    store,
    store_masked,
)
from .._numba.tasks import take_task
from .online_softmax import begin_softmax, continue_softmax, finish_softmax, rescale
from .terms import add_terms, prepare_terms, terms_size

QUERY_BLOCK = 256
KEY_BLOCK = 256
_SPARE_ROWS = TILE_ROWS + 4  # of scores: a tile's last rows, and what fills up the last wide vector


@kernel(parallel=True)
def forward(
    query, query_strides, key, key_strides, value, value_strides, output, output_strides, probs, probs_strides,
    mask, mask_strides, bias, bias_strides, lse, cu_seqlens, cu_seqlens_k, sizes, is_causal, scale, storage,
    counter, tasks,
):  # fmt: skip
    """Of each array its first row and its strides in bytes; probs, mask and bias may be absent: empty.

    `sizes`: sequences, heads, length of queries, length of keys (of all together when packed: then the offsets are not
    empty), head_dim. `storage`: see _numba/operands.py. `counter` hands out the tasks.
    """
    if tasks == 1:
        arrays = query, key, value, output, probs, mask, bias
        strides = (
            query_strides, key_strides, value_strides, output_strides, probs_strides, mask_strides, bias_strides,
        )  # fmt: skip
        run(arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, is_causal, scale, storage, counter, None)
    else:
        for _ in prange(tasks):
            arrays = query, key, value, output, probs, mask, bias
            strides = (
                query_strides, key_strides, value_strides, output_strides, probs_strides, mask_strides, bias_strides,
            )  # fmt: skip
            run(arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, is_causal, scale, storage, counter, None)


@helper
def run(arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, is_causal, scale, storage, counter, terms):
    """Compute tasks until the counter has handed out all; the arguments as in `forward`, `terms` as in terms.py."""
    query, key, value, output, probs, mask, bias = arrays
    views = (
        kernel_view(query, strides[0]), kernel_view(key, strides[1]), kernel_view(value, strides[2]),
        kernel_view(output, strides[3]), kernel_view(probs, strides[4]), kernel_view(mask, strides[5]),
        kernel_view(bias, strides[6]),
    )  # fmt: skip
    sequences, heads, length, length_k, head_dim = sizes
    most, most_k = min(length, QUERY_BLOCK), min(length_k, KEY_BLOCK)
    size = _scratch_size(most, most_k, head_dim, lse) + terms_size(terms, most, most_k, head_dim, lse)
    scratch = np.empty(size, lse.dtype)
    s, before, task = 0, 0, take_task(counter)
    while s < sequences:
        start, queries = _span(cu_seqlens, s, length)
        blocks = (queries + QUERY_BLOCK - 1) // QUERY_BLOCK
        if task < before + heads * blocks:
            h, block = divmod(task - before, blocks)
            panels = panel_count(queries, lse)
            width = 2 * lanes(lse)
            first, last = share(panels, block, blocks) * width, min(share(panels, block + 1, blocks) * width, queries)
            start_k, keys = _span(cu_seqlens_k, s, length_k)
            place = s, h, start, queries, start_k, keys
            _attend(views, lse, place, first, last, (head_dim, is_causal, scale, storage), terms, scratch)
            task = take_task(counter)
        else:
            before += heads * blocks
            s += 1


@inline_helper
def kernel_view(row, strides):
    """(address, strides in elements), of which the address is 0 if the array is absent."""
    size = row.itemsize
    address = np.intp(row.ctypes.data) if len(row) > 0 else np.intp(0)
    return address, strides[0] // size, strides[1] // size, strides[2] // size


@inline_helper
def _span(cu_seqlens, s, length):
    """(first token, tokens) of sequence s."""
    return (np.intp(cu_seqlens[s]), np.intp(cu_seqlens[s + 1] - cu_seqlens[s])) if len(cu_seqlens) > 0 else (0, length)


@inline_helper
def panel_count(queries, like):
    return (queries + 2 * lanes(like) - 1) // (2 * lanes(like))


@inline_helper
def row_size(columns, like):
    """`columns` in whole vectors."""
    return (columns + lanes(like) - 1) // lanes(like) * lanes(like)


@helper
def _scratch_size(queries, keys, head_dim, like):
    """Elements of what `_carve_scratch` cuts a scratch into, and of one cache line, for `aligned`."""
    row, width, whole = row_size(head_dim, like), 2 * lanes(like), panel_count(queries, like) * 2 * lanes(like)
    state, panel, sums = 5 * width + 2 * whole, width * row, (whole + TILE_ROWS) * row
    scores, spare = (keys + _SPARE_ROWS) * width, _spare_rows(keys, row, like) * width
    return state + panel + sums + scores + spare + 2 * (keys + 1) * row + 8 * lanes(like)


@inline_helper
def _spare_rows(keys, row, like):
    """Of a copy of the scores, of a panel of queries, or of a square block of scores."""
    return max(keys + _SPARE_ROWS, row, 2 * lanes(like))


@inline_helper
def _carve_scratch(scratch, count, keys, row):
    """(state, panel of queries, sums, scores, spare scores, rows of keys, rows of values, what is left).

    `state` is room for two wide vectors, then for each query the highest score and the sum of exponentials so far, and
    for each query of a panel the factor that brings its older sums to the new highest score.
    """
    start = aligned(scratch)
    width, whole = 2 * lanes(start), panel_count(count, start) * 2 * lanes(start)
    peaks = pointer(start, 4 * width)
    totals = pointer(peaks, whole)
    factors = pointer(totals, whole)
    panel = pointer(factors, width)
    sums = pointer(panel, width * row)
    scores = pointer(sums, (whole + TILE_ROWS) * row)
    spare = pointer(scores, (keys + _SPARE_ROWS) * width)
    k_rows = pointer(spare, _spare_rows(keys, row, start) * width)
    v_rows = pointer(k_rows, (keys + 1) * row)
    state, rest = (start, peaks, totals, factors), pointer(v_rows, (keys + 1) * row)
    return state, panel, sums, scores, spare, k_rows, v_rows, rest


@helper
def _attend(views, lse, place, first, last, options, terms, scratch):
    """The outputs of the queries from first to last of one sequence and head."""
    query, key, value, _, probs, mask, bias = views
    s, h, start, _, start_k, keys = place
    head_dim, is_causal, scale, storage = options
    count, row, width = last - first, row_size(head_dim, scratch), 2 * lanes(scratch)
    state, panel, sums, scores, spare, k_rows, v_rows, rest = _carve_scratch(scratch, count, min(keys, KEY_BLOCK), row)
    like = sums
    per_word = elements_per_word(storage)
    depth = (head_dim + per_word - 1) // per_word
    seen = min(keys, last) if is_causal else keys
    # What fills up a vector is -inf, which a scale that is not positive would turn into something else afterwards.
    stored = is_causal or probs[0] != 0 or mask[0] != 0 or bias[0] != 0 or not scale > 0
    factor = 1.0 if stored else float(scale)  # scores that are stored are scaled before they are
    begin_softmax(state, count)
    prefetch_rows(row_pointer(query, s, h, start + first, like), query[3], 0, min(width, count), head_dim)
    k_words, v_words = as_words(k_rows, storage), as_words(v_rows, storage)
    for begin in range(0, max(seen, 1), KEY_BLOCK):
        part = min(KEY_BLOCK, seen - begin)
        k, v = row_pointer(key, s, h, start_k + begin, like), row_pointer(value, s, h, start_k + begin, like)
        # Left where they lie, rows of a joined query, key and value fall into few sets of the first-level cache: 10 to
        # 15 % slower within BERT-base.
        lay_rows(k, key[3], part, head_dim, k_words, row, storage)
        lay_depth(v, value[3], part, head_dim, v_rows, row, storage)
        block = first, last, begin, part
        prepare_terms(terms, place, block, k_words, head_dim, storage, rest)
        for i in range(first, last, width):
            n = min(width, last - i)
            visible = min(part, i + n - begin) if is_causal else part
            if visible <= 0 and begin > 0:
                continue
            w = lanes(like) if n <= lanes(like) else width
            lay_columns(row_pointer(query, s, h, start + i, like), query[3], n, head_dim, panel, w, spare, storage)
            multiply(k_words, row, 1, visible, as_words(panel, storage), w, depth, w, scores, w, False)
            add_terms(terms, place, block, i, n, w, k_words, head_dim, storage, rest, scores, spare)
            if stored:
                _add_masks(views, s, h, i, n, begin, visible, is_causal, scale, scores, w, spare)
            continue_softmax(scores, visible, w, factor, state, i - first, storage)
            target = pointer(sums, (i - first) * row)
            if begin > 0:
                rescale(target, n, row, state[3])
            deep = (visible + per_word - 1) // per_word
            multiply(as_words(scores, storage), 1, w, n, v_words, row, deep, head_dim, target, row, begin > 0)
    finish_softmax(views, lse, place, first, count, head_dim, is_causal, sums, row, state)


@helper
def _add_masks(views, s, h, first, count, begin, visible, is_causal, scale, scores, width, spare):
    """Scale the scores, add mask and bias, hide what is not to be seen; write them to the probabilities if wanted."""
    _, _, _, _, probs, mask, bias = views
    for j in range(0, visible * width, lanes(scores)):
        store(scores, j, load(scores, j) * scale)
    for added in (mask, bias):
        if added[0] != 0:
            source = pointer(row_pointer(added, s, h, first, scores), begin)
            pack_panel(source, added[3], 1, count, visible, spare, width)
            for j in range(0, visible * width, lanes(scores)):
                store(scores, j, load(scores, j) + load(spare, j))
    if is_causal:
        for j in range(max(first - begin, 0), visible):
            for d in range(0, width, lanes(scores)):
                hidden = first_lanes(scores, begin + j - first - d)
                store(scores, j * width + d, select(hidden, -np.inf, load(scores, j * width + d)))
    if probs[0] != 0:
        for j in range(0, visible, 2 * lanes(scores)):
            pack_panel(pointer(scores, j * width), width, 1, visible - j, count, spare, 2 * lanes(scores))
            for i in range(count):
                target = pointer(row_pointer(probs, s, h, first + i, scores), begin)
                _copy(pointer(spare, i * 2 * lanes(scores)), min(visible - j, 2 * lanes(scores)), pointer(target, j))


@helper
def _copy(source, count, target):
    for j in range(0, count, lanes(source)):
        store_masked(target, j, load(source, j), first_lanes(source, count - j))
