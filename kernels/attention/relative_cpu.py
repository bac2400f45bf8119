"""Attention with relative positions on the CPU: what the arrays are to the kernels (forward.py, backward.py)."""

import numpy as np

from .._numba import as_kernel_array, num_threads
from .._numba.rows import task_count
from .positions import RelativePositions
from .reference import empty_like, scores_shape
from .relative_backward import backward
from .relative_forward import forward
from .views import (
    GRAIN,
    STORAGE,
    added_mask,
    optional_view,
    sequence_table,
    view,
    view_address,
    with_unit_columns,
)

_NO_IDS = np.empty(0, np.int32)
PRODUCTS = 5  # of queries and keys: two of attention, one and a half of each table
LEAST_TASKS = 32  # of a backward, if there are as many sequences and heads


def attention(query, key, value, scoring, return_probs, compute_dtype):
    """(output, lse, probabilities or None) of packed sequences."""
    relative = scoring.relative
    _, heads, tokens, head_dim = query.shape
    keys, dtype = key.shape[2], query.dtype
    output, lse = empty_like(query, scoring.cu_seqlens), np.empty((1, heads, tokens, 2), dtype)
    probs = None
    if return_probs:
        probs = np.zeros(scores_shape(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k), dtype)
    query_row, key_row, value_row, output_row = (_row(array, dtype) for array in (query, key, value, output))
    terms = (_row(array, dtype) for array in floats_of(relative, query))
    if tokens * heads:
        forward(
            *query_row, *key_row, *value_row, *output_row, *optional_view(probs, dtype),
            *optional_view(added_mask(scoring.attn_mask, dtype), dtype), *(part for term in terms for part in term),
            lse, as_kernel_array(relative.distance_rows),
            *map(ids_or_none, (relative.segment_ids, relative.segment_ids_k)),
            as_kernel_array(scoring.cu_seqlens), as_kernel_array(scoring.cu_seqlens_k),
            (len(scoring.cu_seqlens) - 1, heads, tokens, keys, head_dim), dtype.type(scoring.scale),
            STORAGE[compute_dtype or dtype], np.zeros(1, np.int64),
            tasks((1, heads, tokens, head_dim), keys, len(scoring.cu_seqlens) - 1),
        )  # fmt: skip
    return output, lse, probs


def floats_of(relative, query):
    """position_key, position_query, query_for_position, segment_scores, as (1, heads, rows, width)."""
    for_position = relative.query_for_position
    if for_position is None and relative.position_key is not None:
        for_position = query
    tables = (
        None if it is None else it.transpose(1, 0, 2)[None] for it in (relative.position_key, relative.position_query)
    )
    return *tables, for_position, relative.segment_scores


def tasks(shape, keys, sequences):
    """The tasks for queries (1, heads, tokens, head_dim)."""
    _, heads, tokens, head_dim = shape
    return task_count(PRODUCTS * tokens * heads * (keys // sequences) * head_dim, GRAIN)


def _row(array, dtype):
    """The first row of (1, heads, tokens, head_dim) and its strides; empty if absent."""
    return optional_view(None, dtype) if array is None else view(with_unit_columns(array))


def ids_or_none(segment_ids):
    return _NO_IDS if segment_ids is None else as_kernel_array(segment_ids[0])


def attention_backward(grad_output, query, key, value, lse, scoring):
    """(grad_query, grad_key, grad_value, None, gradients of the relative terms) of packed sequences.

    The gradients of the tables are summed in parts, which depend on the number of heads and sequences alone.
    """
    relative = scoring.relative
    _, heads, _, head_dim = query.shape
    sequences = len(scoring.cu_seqlens) - 1
    parts = max(min(sequences, -(-LEAST_TASKS // max(heads, 1))), 1)
    inputs = [with_unit_columns(array) for array in (query, key, value, grad_output)]
    floats = query, key, value, relative.query_for_position, relative.segment_scores
    is_empty = not query.size and not key.size  # with a head_dim of 0 there may be segment scores nevertheless
    gradients = [None if array is None else empty_like(array, scoring.cu_seqlens) for array in floats]
    for gradient in gradients:
        if gradient is not None and is_empty:
            gradient.fill(0)
    grad_query, grad_key, grad_value, grad_p, grad_segments = gradients
    tables = [
        None if table is None else np.zeros((parts, *table.shape), query.dtype)
        for table in (relative.position_key, relative.position_query)
    ]
    position_key, position_query, *queries = floats_of(relative, query)
    terms = (queries[0], position_key, position_query, queries[1])
    terms = (None if array is None else with_unit_columns(array) for array in terms)
    grad_tables = (None if table is None else table.transpose(0, 2, 1, 3) for table in tables)
    arrays = [
        *inputs, grad_query, grad_key, grad_value, added_mask(scoring.attn_mask, query.dtype), *terms,
        grad_p, *grad_tables, grad_segments,
    ]  # fmt: skip
    if not is_empty:
        table = sequence_table(inputs[0], inputs[1], scoring.cu_seqlens, scoring.cu_seqlens_k)
        backward(
            *map(view_address, arrays), as_kernel_array(relative.distance_rows),
            *map(ids_or_none, (relative.segment_ids, relative.segment_ids_k)),
            as_kernel_array(lse), table, (parts, heads), head_dim, query.dtype.type(scoring.scale),
            np.zeros(1, np.int64), num_threads(),
        )  # fmt: skip
    grad_a, grad_b = (None if table is None else _sum_parts(table) for table in tables)
    grads = RelativePositions(
        None, position_key=grad_a, position_query=grad_b, query_for_position=grad_p, segment_scores=grad_segments
    )
    return grad_query, grad_key, grad_value, None, grads


def _sum_parts(parts):
    return parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
