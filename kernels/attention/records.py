"""What attention's compiled code takes: one record of addresses, strides and numbers for each direction.

A view is an array (batch, heads, rows, columns) with contiguous rows: its address, 0 if it is absent, and its other
strides in elements, 0 where an axis has size 1. Whoever fills a record keeps its arrays alive and hands over arrays
from `as_addressed_array` alone.
"""

import numpy as np

from .._numba import empty, inline_helper
from .._numba.arrays import CACHE_LINE, address_of, as_addressed_array, as_kernel_array
from .._numba.simd import itemsize, pointer_at
from .._numba.steps import ADDRESS, INT32, record
from ..precision import working_dtype
from .arguments import UNLIMITED
from .reference import unbroadcast

VIEW = record(("address", ADDRESS), ("batch", np.intp), ("head", np.intp), ("row", np.intp))
NOTHING = (0, 0, 0, 0)
_TERMS = ("query_for_position", "position_key", "position_query", "position_bias", "segment_scores")

# What both directions have in common.
COMMON = (
    *((name, VIEW) for name in ("query", "key", "value", "mask", "bias", *_TERMS, "lse")),
    *((name, ADDRESS) for name in ("distance_rows", "segment_ids", "segment_ids_k", "scratch")),
    *((name, np.intp) for name in ("distances", "segments", "segments_k")),  # rows; elements of a batch of ids
    *((name, np.intp) for name in ("rooms", "room")),  # of the scratch: how many, and the elements of each
    *((name, np.intp) for name in ("heads", "sharing", "head_dim", "left", "right")),  # query heads of a key head
    ("is_causal", np.bool_),
    ("scale", np.float64),
)


def view(array):
    """The values of a VIEW; `array` is None or comes from `as_addressed_array`."""
    if array is None:
        return NOTHING
    size, (batch, heads, rows, _), strides = array.itemsize, array.shape, array.strides
    return (
        address_of(array),
        0 if batch == 1 else strides[0] // size,
        0 if heads == 1 else strides[1] // size,
        0 if rows == 1 else strides[2] // size,
    )


def addressed(array):
    return None if array is None else as_addressed_array(array)


def heads_first(table):
    """A table, (rows, heads, head_dim) or (rows, heads), as (1, heads, rows, columns)."""
    if table is None:
        return None
    return (table if table.ndim == 3 else table[:, :, None]).transpose(1, 0, 2)[None]


def added_mask(mask, dtype):
    """A boolean or additive mask as what is added to the scores: contiguous along the keys, small where broadcast."""
    if mask is None:
        return None
    own = unbroadcast(mask)
    if own.dtype == np.bool_:
        own = np.where(own, dtype.type(0), dtype.type(-np.inf))
    return as_addressed_array(np.broadcast_to(own, (*own.shape[:3], mask.shape[3])))


def term_arrays(relative, query):
    """The floating arrays of the terms by name, as views take them; those of None are absent."""
    if relative is None:
        return dict.fromkeys(_TERMS)
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
    """(distance_rows, segment_ids, segment_ids_k) as compiled code reads them, or Nones."""
    if relative is None:
        return None, None, None
    arrays = relative.distance_rows, relative.segment_ids, relative.segment_ids_k
    return tuple(None if array is None else as_kernel_array(array) for array in arrays)


def numbers(query, key, scoring, integers):
    """The values of COMMON's fields that are no addresses, by name; not the scratch's."""
    distance_rows, segment_ids, segment_ids_k = integers
    heads, head_dim = query.shape[1], query.shape[3]
    is_dense = scoring.cu_seqlens is None
    return {
        "distances": 0 if distance_rows is None else len(distance_rows),
        "segments": segment_ids.shape[1] if is_dense and segment_ids is not None else 0,
        "segments_k": segment_ids_k.shape[1] if is_dense and segment_ids_k is not None else 0,
        "heads": heads,
        "sharing": heads // max(key.shape[1], 1),
        "head_dim": head_dim,
        "left": scoring.window[0],
        "right": scoring.window[1],
        "is_causal": scoring.is_causal,
        "scale": scoring.scale,
    }


def filled(kind, fields):
    """An array of one record."""
    return np.array([tuple(fields[name] for name in kind.names)], kind)


def make_scratch(rooms, room, dtype):
    """`rooms` rooms of `room` elements, from a cache line on; MemoryError, with the size, if there is not enough."""
    memory = empty((rooms * room * dtype.itemsize + CACHE_LINE,), np.uint8)
    return memory[-address_of(memory) % CACHE_LINE :]


def visible_keys(scoring, keys):
    """At most so many of `keys` keys does a query see."""
    left, right = scoring.window
    return keys if UNLIMITED in (left, right) else min(keys, left + right + 1)


def lse_like(query):
    return np.empty((*query.shape[:3], 2), working_dtype(query.dtype))


# --- for compiled code ------------------------------------------------------------------------------


@inline_helper
def view_of(field):
    """(address, strides of batch, heads and rows)."""
    return field.address, field.batch, field.head, field.row


@inline_helper
def span(offsets, s, length):
    """(first token, tokens) of sequence s; `offsets` is an address, 0 of dense arrays."""
    if offsets == 0:
        return np.intp(0), np.intp(length)
    bounds = pointer_at(offsets, INT32)
    return np.intp(bounds[s]), np.intp(bounds[s + 1] - bounds[s])


@inline_helper
def band(step, queries, keys):
    """(below, above): query i sees the keys from i + below to i + above, if they are there."""
    below, above = keys - queries - step.left, keys - queries + step.right
    return below, min(above, 0) if step.is_causal else above


@inline_helper
def whole_lines(elements):
    """As many elements, and those that fill up the last cache line."""
    return (elements + 15) // 16 * 16


@inline_helper
def room_of(step, task, like):
    """A task's room of the scratch."""
    return pointer_at(step.scratch + task * step.room * itemsize(like), like)


@inline_helper
def rows_of(step):
    """(the tables' rows by distance, the last distance that has one)."""
    return pointer_at(step.distance_rows, INT32), step.distances // 2


@inline_helper
def row_at(rows, distance):
    """The tables' row for a distance."""
    row_of, last = rows
    return row_of[min(max(distance, -last), last) + last]


@inline_helper
def segments_of(step):
    """(address of the queries' segments, elements of a batch of them, the same of the keys)."""
    return step.segment_ids, step.segments, step.segment_ids_k, step.segments_k


@inline_helper
def segment_pointers(segments, s):
    """The ids of the queries and of the keys of batch s."""
    address, size, address_k, size_k = segments
    bytes_each = itemsize(INT32)
    return pointer_at(address + s * size * bytes_each, INT32), pointer_at(address_k + s * size_k * bytes_each, INT32)
