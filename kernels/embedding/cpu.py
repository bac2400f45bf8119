"""Embedding rows on the CPU.

The table is read row by row, through its address: a read-only memory map, or a slice of another array, is not copied.
The gradient adds the occurrences of an id in their order, in float64; each thread sums its own columns.
"""

import numpy as np

from .._numba import address_of, as_addressed_array, empty, helper, kernel, parallel_kernel, region
from .._numba.rows import flat, share, task_count
from .._numba.simd import lanes, pointer, pointer_at
from ..arrays import is_bfloat16

GRAIN_BYTES = 1 << 18
STRIPE = 16  # columns; the stripes of two threads share no cache line


def embedding(input, weight):
    """Return rows for ids of any shape, (*shape of the ids, dim), in the weight's dtype (float32 for bfloat16)."""
    # A row is copied byte by byte; a bfloat16 is the upper half of a float32.
    from_dtype, to_dtype = np.uint8, np.uint8
    if is_bfloat16(weight.dtype):
        weight, from_dtype, to_dtype = weight.view(np.uint16), np.uint16, np.uint32
    output = empty((*input.shape, weight.shape[1]), np.float32 if to_dtype == np.uint32 else weight.dtype)
    if output.size:
        if from_dtype == np.uint8 and weight.strides[1] == weight.itemsize:
            weight = weight.view(np.uint8)  # bytes need no alignment: a file mapped at an odd address is not copied
        weight = as_addressed_array(weight)
        table = address_of(weight), weight.strides[0], np.empty(0, from_dtype)
        _gather(*table, _ids(input), output.reshape(-1).view(to_dtype), task_count(output.nbytes, GRAIN_BYTES))
    return output


def embedding_backward(grad_output, input, num_embeddings, add_to):
    """Return the gradient of the (num_embeddings, dim) weight, added to the array `add_to` if that is not None."""
    dim = grad_output.shape[-1]
    grad_weight = empty((num_embeddings, dim), grad_output.dtype) if add_to is None else add_to
    if not grad_output.size:
        if add_to is None:
            grad_weight[...] = 0
        return grad_weight
    ids, first = _ids(input), np.full(num_embeddings, -1)
    tasks = min(task_count(grad_output.nbytes, GRAIN_BYTES), -(-dim // STRIPE))
    links = first, np.empty_like(ids)
    _scatter(flat(grad_output), ids, dim, *links, np.empty(dim), grad_weight, add_to is None, tasks)
    return grad_weight


def _ids(input):
    return flat(np.asarray(input, np.int64))


@parallel_kernel
def _gather(table, stride, like, ids, out, task, tasks):
    """Copy rows of the table at the address `table`, with elements as in the array `like`, to out."""
    gather_rows(table, stride, like, ids, out, share(ids.size, task, tasks), share(ids.size, task + 1, tasks))


@helper
def gather_rows(table, stride, like, ids, out, first, last):
    """Copy the rows of the table for the ids from `first` to `last`."""
    width = out.size // ids.size
    shift = 16 * (lanes(like) // lanes(out) - 1)  # a constant for the compiler: 0, or 16 from 16 bits to 32
    for i in range(first, last):
        row, target = pointer_at(table + ids[i] * stride, like), pointer(out, i * width)
        for c in range(width):
            target[c] = np.uint32(row[c]) << shift


@helper
def _link_occurrences(ids, first, following):
    """Set first[id] to the first index of id, and following[i] to the next index of ids[i]; -1 if it is missing."""
    for i in range(ids.size - 1, -1, -1):
        following[i] = first[ids[i]]
        first[ids[i]] = i


@region
def _sum_columns(grad, ids, dim, first, following, exact, out, task, tasks):
    """Add a stripe of columns of every id's gradient to `out`; `exact` is scratch, (dim,) float64."""
    stripes = (dim + STRIPE - 1) // STRIPE
    start, stop = share(stripes, task, tasks) * STRIPE, min(share(stripes, task + 1, tasks) * STRIPE, dim)
    for i in range(ids.size):
        if first[ids[i]] != i:
            continue
        for c in range(start, stop):
            exact[c] = 0.0
        occurrence = i
        while occurrence >= 0:
            row = pointer(grad, occurrence * dim)
            for c in range(start, stop):
                exact[c] += row[c]
            occurrence = following[occurrence]
        target = pointer(out, ids[i] * dim)
        for c in range(start, stop):
            target[c] += exact[c]


@region
def _clear(out, task, tasks):
    """Write zeros in all threads: NumPy's single thread makes the gradient of a large vocabulary 1.6 times slower."""
    target = pointer(out, 0)
    for i in range(share(out.size, task, tasks), share(out.size, task + 1, tasks)):
        target[i] = 0


@kernel(regions=True)
def _scatter(grad, ids, dim, first, following, exact, out, is_new, tasks):
    if is_new:
        _clear(out, tasks)
    _link_occurrences(ids, first, following)
    _sum_columns(grad, ids, dim, first, following, exact, out, tasks)
