"""Embedding rows on the CPU.

The table is only ever read row by row, through its address: one that is a read-only memory map, or a slice of another
array, is not copied. The gradient adds the occurrences of an id in their order, in float64; threads own columns.
"""

import numpy as np
from numba import prange

from .._numba import helper, kernel
from .._numba.rows import flat, share, task_count
from .._numba.simd import pointer, pointer_at

GRAIN_BYTES = 1 << 18
STRIPE = 16  # columns: stripes of threads share no cache line


def embedding(input, weight):
    """Ids of any shape to (*shape of the ids, dim)."""
    output = np.empty((*input.shape, weight.shape[1]), weight.dtype)
    if output.size:
        if weight.shape[1] > 1 and weight.strides[1] != weight.itemsize:  # a transposed table
            weight = np.ascontiguousarray(weight)
        table = weight.__array_interface__["data"][0], weight.strides[0]
        _gather(*table, _ids(input), output.view(np.uint8).reshape(-1), task_count(output.nbytes, GRAIN_BYTES))
    return output


def embedding_backward(grad_output, input, num_embeddings):
    """Gradient of the (num_embeddings, dim) weight."""
    dim = grad_output.shape[-1]
    grad_weight = np.zeros((num_embeddings, dim), grad_output.dtype)
    if grad_output.size:
        ids, first = _ids(input), np.full(num_embeddings, -1)
        tasks = min(task_count(grad_output.nbytes, GRAIN_BYTES), -(-dim // STRIPE))
        _scatter(flat(grad_output), ids, dim, first, np.empty_like(ids), grad_weight, tasks)
    return grad_weight


def _ids(input):
    return flat(np.asarray(input, np.int64))


@helper
def _gather_rows(table, stride, ids, out, width, first, last):
    for i in range(first, last):
        row, target = pointer_at(table + ids[i] * stride, out), pointer(out, i * width)
        for byte in range(width):
            target[byte] = row[byte]


@kernel(parallel=True)
def _gather(table, stride, ids, out, tasks):
    width = out.size // ids.size
    if tasks == 1:
        _gather_rows(table, stride, ids, out, width, 0, ids.size)
    else:
        for task in prange(tasks):
            _gather_rows(table, stride, ids, out, width, share(ids.size, task, tasks), share(ids.size, task + 1, tasks))


@helper
def _link_occurrences(ids, first, following):
    """first[id]: where id occurs first; following[i]: where ids[i] occurs next; -1 where it does not."""
    for i in range(ids.size - 1, -1, -1):
        following[i] = first[ids[i]]
        first[ids[i]] = i


@helper
def _sum_columns(grad, ids, dim, first, following, out, start, stop):
    """Columns `start` to `stop` of every id's gradient."""
    exact = np.empty(stop - start)
    for i in range(ids.size):
        if first[ids[i]] != i:
            continue
        exact[:] = 0.0
        occurrence = i
        while occurrence >= 0:
            row = pointer(grad, occurrence * dim + start)
            for c in range(stop - start):
                exact[c] += row[c]
            occurrence = following[occurrence]
        target = pointer(out, ids[i] * dim + start)
        for c in range(stop - start):
            target[c] = exact[c]


@kernel(parallel=True)
def _scatter(grad, ids, dim, first, following, out, tasks):
    _link_occurrences(ids, first, following)
    if tasks == 1:
        _sum_columns(grad, ids, dim, first, following, out, 0, dim)
    else:
        stripes = (dim + STRIPE - 1) // STRIPE
        for task in prange(tasks):
            start, stop = share(stripes, task, tasks) * STRIPE, min(share(stripes, task + 1, tasks) * STRIPE, dim)
            _sum_columns(grad, ids, dim, first, following, out, start, stop)
