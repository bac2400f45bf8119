"""Records of addresses, strides and numbers for attention's kernels, one for each direction.

A view is an array (batch, heads, rows, columns) with contiguous rows: its address, 0 if it is absent, and its other
strides in elements, 0 for axes of size 1. Code that fills a record must keep its arrays alive; they come from
`as_addressed_array`.
"""

import functools

import numpy as np

from ..._numba import empty, inline_helper
from ..._numba.memory import CACHE_LINE, address_of, as_addressed_array, as_kernel_array
from ..._numba.rows import rounded_up
from ..._numba.simd import itemsize, pointer_at
from ..._numba.steps import ADDRESS, INT32, filled, record
from ...arrays import working_dtype
from ...philox import threshold
from ..arguments import UNLIMITED, heads_first
from ..reference import unbroadcast

VIEW = record(("address", ADDRESS), ("batch", np.intp), ("head", np.intp), ("row", np.intp))
NOTHING = (0, 0, 0, 0)
_TERMS = ("query_for_position", "position_key", "position_query", "position_bias", "segment_scores")

# The fields of both directions, first the fields that are always set.
COMMON = (
    *((name, VIEW) for name in ("query", "key", "value", "lse")),
    ("scratch", ADDRESS),
    ("scratches", np.intp),  # parts of the scratch, one per task
    ("scratch_size", np.intp),  # elements of each
    ("heads", np.intp),
    ("sharing", np.intp),  # query heads of a key head
    *((name, np.intp) for name in ("head_dim", "left", "right")),
    ("is_causal", np.bool_),
    ("scale", np.float64),
    ("keep", np.float64),  # 1 / (1 - p) of dropout
    ("seed", np.uint64),
    ("threshold", np.uint32),  # random bits below it drop a weight; 0 without dropout
    ("batch_rows", np.intp),  # queries per entry of a batch; 0 for packed ones, whose offsets count all tokens
)
OPTIONAL = (
    *((name, VIEW) for name in ("mask", "bias", *_TERMS)),
    *((name, ADDRESS) for name in ("distance_rows", "segment_ids", "segment_ids_k")),
    *((name, np.intp) for name in ("distances", "segments", "segments_k")),  # rows; elements of a batch of ids
)


def view(array):
    """Return the values of a VIEW; `array` comes from `as_addressed_array`."""
    size, (batch, heads, rows, _), (of_batch, of_head, of_row, _) = array.itemsize, array.shape, array.strides
    return (
        address_of(array),
        0 if batch == 1 else of_batch // size,
        0 if heads == 1 else of_head // size,
        0 if rows == 1 else of_row // size,
    )


def addressed(array):
    return None if array is None else as_addressed_array(array)


def added_mask(mask, dtype):
    """Return a boolean or additive mask as an addend of the scores, contiguous along the keys, small if broadcast."""
    if mask is None:
        return None
    own = unbroadcast(mask)
    if own.dtype == np.bool_:
        own = np.where(own, dtype.type(0), dtype.type(-np.inf))
    return as_addressed_array(np.broadcast_to(own, (*own.shape[:3], mask.shape[3])))


def term_arrays(relative, query):
    """Return the floating arrays of the terms by name, as `view` expects them."""
    if relative is None:
        return {}
    for_position = relative.query_for_position
    if for_position is None and relative.position_key is not None:
        for_position = query
    return {
        "query_for_position": for_position,
        "position_key": heads_first(relative.position_key),
        "position_query": heads_first(relative.position_query),
        "position_bias": heads_first(relative.position_bias),
        "segment_scores": relative.segment_scores,
    }


def integer_arrays(relative):
    """Return the integers of the terms by name, as the kernels read them."""
    if relative is None:
        return {}
    names = ("distance_rows", "segment_ids", "segment_ids_k")
    arrays = ((name, getattr(relative, name)) for name in names)
    return {name: as_kernel_array(array) for name, array in arrays if array is not None}


def integer_fields(integers, scoring):
    """Return the fields of `integer_arrays`."""
    fields = {name: address_of(array) for name, array in integers.items()}
    if "distance_rows" in integers:
        fields["distances"] = len(integers["distance_rows"])
    if "segment_ids" in integers and scoring.cu_seqlens is None:
        fields["segments"], fields["segments_k"] = (integers[it].shape[1] for it in ("segment_ids", "segment_ids_k"))
    return fields


def common_fields(arrays, scratch, scoring):
    """Return the fields of COMMON; `scratch` is (address, count, size)."""
    query, key = arrays["query"], arrays["key"]
    (_, heads, _, head_dim), heads_k = query.shape, key.shape[1]
    (address, count, size), (left, right) = scratch, scoring.window
    return {
        "query": view(query), "key": view(key), "value": view(arrays["value"]), "lse": view(arrays["lse"]),
        "scratch": address, "scratches": count, "scratch_size": size,
        "heads": heads, "sharing": heads // heads_k if heads_k else heads, "head_dim": head_dim,
        "left": left, "right": right, "is_causal": scoring.is_causal, "scale": scoring.scale,
        "keep": 1 / (1 - scoring.dropout_p), "seed": scoring.dropout_seed,
        "threshold": threshold(scoring.dropout_p) if scoring.dropout_p else 0,
        "batch_rows": query.shape[2] if scoring.cu_seqlens is None else 0,
    }  # fmt: skip


def filled_record(kind, fields):
    """Return an array of one record, with zeros for absent fields; fastest if the given ones come first, in order."""
    if tuple(fields) != kind.names[: len(fields)]:
        fields = absent_fields(kind) | fields
    return filled(kind, [fields.values()])


@functools.cache
def absent_fields(kind):
    """Return all fields of a record, in order, as absent."""
    return {name: NOTHING if kind[name] == VIEW else 0 for name in kind.names}


def make_scratch(count, size, dtype):
    """Return (memory, (its first cache line, count, size)) for `count` parts of `size` elements.

    Raises MemoryError with the size if memory is insufficient.
    """
    memory = empty((count * size * dtype.itemsize + CACHE_LINE,), np.uint8)
    address = address_of(memory)
    return memory, (address + -address % CACHE_LINE, count, size)


def visible_keys(scoring, keys):
    """Return how many of `keys` keys a query attends to at most."""
    left, right = scoring.window
    return keys if UNLIMITED in (left, right) else min(keys, left + right + 1)


def lse_like(query):
    return np.empty((*query.shape[:3], 2), working_dtype(query.dtype))


# --- for compiled code ------------------------------------------------------------------------------


@inline_helper
def view_of(field):
    """Return (address, strides of batch, heads and rows)."""
    return field.address, field.batch, field.head, field.row


@inline_helper
def span(offsets, s, length):
    """Return (first token, tokens) of sequence s; `offsets` is an address, 0 for dense arrays."""
    if offsets == 0:
        return np.intp(0), np.intp(length)
    bounds = pointer_at(offsets, INT32)
    return np.intp(bounds[s]), np.intp(bounds[s + 1] - bounds[s])


@inline_helper
def band(step, queries, keys):
    """Return (below, above): query i attends to the existing keys from i + below to i + above."""
    below, above = keys - queries - step.left, keys - queries + step.right
    return below, min(above, 0) if step.is_causal else above


@inline_helper
def bits_row(step, s, h, query):
    """Return the row of random bits of a query, counted among all tokens, and a head."""
    return np.uint64((s * step.batch_rows + query) * step.heads + h)


@inline_helper
def whole_lines(elements):
    """Round `elements` up to whole cache lines of float32."""
    return rounded_up(elements, 16)


@inline_helper
def scratch_of(step, task, like):
    """Return a pointer to a task's part of the scratch."""
    return pointer_at(step.scratch + task * step.scratch_size * itemsize(like), like)


@inline_helper
def rows_of(step):
    """Return (the tables' rows by distance, the last distance that has a row)."""
    return pointer_at(step.distance_rows, INT32), step.distances // 2


@inline_helper
def row_at(rows, distance):
    """Return the tables' row for a distance."""
    row_of, last = rows
    return row_of[min(max(distance, -last), last) + last]


@inline_helper
def segments_of(step):
    """Return (address of the queries' segments, elements of a batch of them, the same for the keys)."""
    return step.segment_ids, step.segments, step.segment_ids_k, step.segments_k


@inline_helper
def segment_pointers(segments, s):
    """Return pointers to the segment ids of the queries and keys of batch s."""
    address, size, address_k, size_k = segments
    bytes_each = itemsize(INT32)
    return pointer_at(address + s * size * bytes_each, INT32), pointer_at(address_k + s * size_k * bytes_each, INT32)
