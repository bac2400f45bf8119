"""Late interaction on the CPU: products by tiles of vectors, whose columns are query tokens, one per lane.

Queries are packed into panels once. A task computes pairs of a document and a panel: it multiplies some rows of the
document at a time with the panel, and keeps the maximum of each column in registers while the products are in the
first-level cache. So no product is written to memory, and lanes are never combined.
"""

import numpy as np

from .._numba import LEVEL, as_kernel_array, helper, parallel_kernel
from .._numba.memory import address_of
from .._numba.products.blocks import TILE_ROWS, multiply
from .._numba.products.panels import pack_panel
from .._numba.products.tile import make_fetching_tile
from .._numba.rows import flat, share, task_count
from .._numba.simd import broadcast, itemsize, lanes, load, pointer, select, store
from . import reference

GRAIN = 1 << 19  # multiplications
ROWS = 8 * TILE_ROWS  # of a document at once
VECTORS = 2  # of a panel
_tile = make_fetching_tile(TILE_ROWS, VECTORS)


def maxsim(query, document, cu_seqlens, cu_seqlens_q):
    """Return scores (queries, documents), and best, int32 (documents, query tokens), the row of each maximum or -1."""
    if not query.size or not document.size:
        return reference.maxsim(query, document, cu_seqlens, cu_seqlens_q)
    (tokens, dim), documents, dtype = query.shape, len(cu_seqlens) - 1, query.dtype
    peaks, best = np.zeros((documents, tokens), dtype), np.full((documents, tokens), -1, np.int32)
    scores = np.zeros((len(cu_seqlens_q) - 1, documents), dtype)
    panels, tasks = _packed(flat(query), tokens, dim), task_count(query.size * len(document), GRAIN)
    rows = flat(document)
    _peaks(panels, rows, address_of(rows), np.asarray(cu_seqlens, np.int64), dim, peaks, best, tasks)
    _sums(peaks, np.asarray(cu_seqlens_q, np.int64), scores, task_count(peaks.size, GRAIN))
    return scores, best


def maxsim_backward(grad_output, query, document, cu_seqlens, cu_seqlens_q, best):
    """Return the gradients of query and document."""
    grad_query, grad_document = np.zeros(query.shape, query.dtype), np.zeros(document.shape, document.dtype)
    if query.size and document.size and best.size:
        queries = np.repeat(np.arange(len(cu_seqlens_q) - 1), np.diff(cu_seqlens_q))
        arrays = as_kernel_array(grad_output), flat(query), flat(document), best, queries
        tasks = task_count(best.size * query.shape[1], GRAIN)
        _backward(*arrays, query.shape[1], grad_query.reshape(-1), grad_document.reshape(-1), tasks)
    return grad_query, grad_document


def _packed(query, tokens, dim):
    """Return the queries as panels (panels, dim, width), zeros in the columns after the last token."""
    width = VECTORS * LEVEL.vector_bytes // query.itemsize
    panels = np.zeros((-(-tokens // width), dim, width), query.dtype)
    _pack(query, tokens, dim, panels, task_count(query.size, GRAIN))
    return panels


@parallel_kernel
def _pack(query, tokens, dim, panels, task, tasks):
    width = panels.shape[2]
    for p in range(share(len(panels), task, tasks), share(len(panels), task + 1, tasks)):
        first = p * width
        pack_panel(
            pointer(query, first * dim), dim, 1, min(tokens - first, width), dim, pointer(panels, first * dim), width
        )


@helper
def _take(products, at, row, value, place):
    """Return the higher of `value` and a vector of products, and its row; NaN is higher than all."""
    new = load(products, at)
    keeps = (new <= value) | (value != value)
    return select(keeps, value, new), select(keeps, place, broadcast(products, row))


@helper
def _multiply(document, first, rows, dim, base, panel, scratch):
    """Write the products of some rows of the document, which begins at the address `base`, with a panel.

    While a tile is computed, the rows of the next one are prefetched, which is 1.9 times as fast from main memory.
    """
    width, row = scratch.shape[1], dim * itemsize(document)
    for i in range(0, rows, TILE_ROWS):
        left, products, count = pointer(document, (first + i) * dim), pointer(scratch, i * width), rows - i
        if count >= TILE_ROWS:
            ahead = base + (first + i + TILE_ROWS) * row
            _tile(
                left,
                dim,
                1,
                TILE_ROWS - 1,
                panel,
                width,
                dim,
                products,
                width,
                False,
                ahead,
                TILE_ROWS * itemsize(document),
            )
        else:
            multiply(left, dim, 1, count, panel, width, dim, width, products, width, False)


@parallel_kernel
def _peaks(panels, document, base, offsets, dim, peaks, best, task, tasks):
    """Find the highest product of each document and query token, and its row."""
    count, width, tokens = len(panels), panels.shape[2], peaks.shape[1]
    pairs = count * (len(offsets) - 1)
    scratch, found = np.empty((ROWS, width), panels.dtype), np.empty((2, width), panels.dtype)
    products, step = pointer(scratch, 0), lanes(panels)
    for pair in range(share(pairs, task, tasks), share(pairs, task + 1, tasks)):
        number, p = pair // count, pair % count
        start, stop = offsets[number], offsets[number + 1]
        high, high2 = broadcast(panels, -np.inf), broadcast(panels, -np.inf)
        row, row2 = broadcast(panels, 0.0), broadcast(panels, 0.0)
        for first in range(start, stop, ROWS):
            rows = min(stop - first, ROWS)
            _multiply(document, first, rows, dim, base, pointer(panels, p * dim * width), scratch)
            for i in range(rows):
                high, row = _take(products, i * width, first - start + i, high, row)
                high2, row2 = _take(products, i * width + step, first - start + i, high2, row2)
        if start < stop:
            store(found, 0, high)
            store(found, step, high2)
            store(found, width, row)
            store(found, width + step, row2)
            for column in range(min(width, tokens - p * width)):
                peaks[number, p * width + column] = found[0, column]
                best[number, p * width + column] = start + int(found[1, column])


@parallel_kernel
def _sums(peaks, offsets, scores, task, tasks):
    for number in range(share(len(peaks), task, tasks), share(len(peaks), task + 1, tasks)):
        for query in range(len(offsets) - 1):
            total = 0.0
            for token in range(offsets[query], offsets[query + 1]):
                total += float(peaks[number, token])
            scores[query, number] = total


@helper
def _add(source, factor, width, target):
    """Add factor * source to target, for `width` elements."""
    for column in range(width):
        target[column] += factor * source[column]


@parallel_kernel
def _backward(grad, query, document, best, queries, dim, grad_query, grad_document, task, tasks):
    """Compute a task's share of the gradients: of some query tokens, and of the tokens of some documents."""
    documents, tokens = best.shape
    for token in range(share(tokens, task, tasks), share(tokens, task + 1, tasks)):
        for number in range(documents):
            if best[number, token] >= 0:
                source, factor = pointer(document, best[number, token] * dim), grad[queries[token], number]
                _add(source, factor, dim, pointer(grad_query, token * dim))
    for number in range(share(documents, task, tasks), share(documents, task + 1, tasks)):
        for token in range(tokens):
            if best[number, token] >= 0:
                source, factor = pointer(query, token * dim), grad[queries[token], number]
                _add(source, factor, dim, pointer(grad_document, best[number, token] * dim))
