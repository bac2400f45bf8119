"""Attention with relative positions on the CPU: what the arrays are to the kernels (forward.py, backward.py)."""

import numpy as np

from .._numba import as_kernel_array, num_threads
from .._numba.rows import task_count
from .._numba.steps import RELATIVE_ATTENTION
from ..attention.cpu import (
    ATTENTION_STORAGE,
    GRAIN,
    STORAGE,
    added_mask,
    is_deferred_float32,
    optional_view,
    sequence_table,
    step_fields,
    view,
    view_address,
    with_unit_columns,
)
from ..program import Deferred
from .backward import backward
from .forward import forward
from .reference import score_components, scores_shape

_NO_IDS = np.empty(0, np.int32)
PRODUCTS = 5  # of queries and keys: two of attention, one and a half of each table
LEAST_TASKS = 32  # of a backward, if there are as many sequences and heads


def relative_attention(
    query, key, value, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
    scale, return_probs, return_components, compute_dtype,
):  # fmt: skip
    """(output, lse, probabilities or None, components or None); components are computed as the definition does."""
    components = None
    if return_components:
        components = score_components(
            query, key, position_key, position_query, query_for_position, distance_rows, cu_seqlens, cu_seqlens_k,
            scale, compute_dtype,
        )  # fmt: skip
    tokens, heads, head_dim = query.shape
    keys, dtype = key.shape[0], query.dtype
    output, lse = np.empty(query.shape, dtype), np.empty((1, heads, tokens), dtype)
    probs = np.zeros(scores_shape(heads, cu_seqlens, cu_seqlens_k), dtype) if return_probs else None
    if query_for_position is None and position_key is not None:
        query_for_position = query
    floats = (query, key, value, output, position_key, position_query, query_for_position, segment_scores)
    query_row, key_row, value_row, output_row, *terms = (_row(array, dtype) for array in floats)
    if tokens * heads:
        forward(
            *query_row, *key_row, *value_row, *output_row, *optional_view(probs, dtype),
            *optional_view(added_mask(attn_mask, dtype), dtype), *(part for term in terms for part in term),
            lse, as_kernel_array(distance_rows), *map(_ids, (segment_ids, segment_ids_k)),
            as_kernel_array(cu_seqlens), as_kernel_array(cu_seqlens_k),
            (len(cu_seqlens) - 1, heads, tokens, keys, head_dim), dtype.type(scale),
            STORAGE[compute_dtype or dtype], np.zeros(1, np.int64),
            _tasks((1, heads, tokens, head_dim), keys, len(cu_seqlens) - 1),
        )  # fmt: skip
    return output, lse[0], probs, components


def deferred_relative_attention(
    program, query, key, value, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
    scale, return_probs, return_components, compute_dtype,
):  # fmt: skip
    """Note the step in float32, or in bfloat16 beside weights of low precision; None for what has no deferred form."""
    if attn_mask is not None or return_probs or return_components or not query.size:
        return None
    if ATTENTION_STORAGE.get(type(program.storage)) is not type(STORAGE[compute_dtype or query.dtype]):
        return None
    query, key, value = (array.transpose(1, 0, 2)[None] for array in (query, key, value))
    if query_for_position is None and position_key is not None:
        query_for_position = query[0].transpose(1, 0, 2)
    terms = query_for_position, position_key, position_query, segment_scores
    if not all(map(is_deferred_float32, (query, key, value))) or not all(map(_is_readable, terms)):
        return None
    _, heads, tokens, head_dim = query.shape
    output = program.empty((tokens, heads, head_dim), np.float32)
    lse = program.empty((1, heads, tokens), np.float32)
    target = output.transpose(1, 0, 2)[None]
    program.note(
        RELATIVE_ATTENTION, _tasks(query.shape, key.shape[2], len(cu_seqlens) - 1),
        *step_fields(program, query, key, value, target, lse, cu_seqlens, cu_seqlens_k, False, scale),
        *(field for array in terms for field in _fields(program, array)),
        program.address(as_kernel_array(distance_rows)), len(distance_rows),
        *(program.address(_ids(ids)) for ids in (segment_ids, segment_ids_k)),
    )  # fmt: skip
    return output, lse[0], None, None


def _is_readable(array):
    """Whether a step can read a Deferred or an array, or None."""
    if type(array) is Deferred:
        return is_deferred_float32(array)
    if array is None:
        return True
    *strides, unit = array.strides
    whole = unit == array.itemsize and not any(stride % array.itemsize for stride in strides)
    return array.dtype == np.float32 and array.flags.aligned and whole


def _fields(program, array):
    """(address, stride of the heads, of the rows) of (rows, heads, head_dim), in bytes."""
    return (0, 0, 0) if array is None else (program.address(array), array.strides[1], array.strides[0])


def _tasks(shape, keys, sequences):
    """The tasks for queries (1, heads, tokens, head_dim)."""
    _, heads, tokens, head_dim = shape
    return task_count(PRODUCTS * tokens * heads * (keys // sequences) * head_dim, GRAIN)


def _row(array, dtype):
    """The first row of (tokens, heads, head_dim) as (1, heads, tokens, head_dim), and its strides; empty if absent."""
    if array is None:
        return optional_view(None, dtype)
    return view(_heads_first(array))


def _ids(segment_ids):
    return _NO_IDS if segment_ids is None else as_kernel_array(segment_ids)


def relative_attention_backward(
    grad_output, query, key, value, output, lse, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
):  # fmt: skip
    """The gradients of query, key, value, position_key, position_query, query_for_position and segment_scores.

    `output` is not needed, as in attention. The gradients of the tables are summed in parts, which depend on the number
    of heads and sequences alone.
    """
    heads, head_dim = query.shape[1:]
    sequences = len(cu_seqlens) - 1
    parts = max(min(sequences, -(-LEAST_TASKS // max(heads, 1))), 1)
    inputs = [None if array is None else _heads_first(array) for array in (query, key, value, grad_output)]
    floats = query, key, value, query_for_position, segment_scores
    is_empty = not query.size and not key.size  # with a head_dim of 0 there may be segment scores nevertheless
    make = np.zeros if is_empty else np.empty
    gradients = [None if array is None else make(array.shape, array.dtype) for array in floats]
    grad_query, grad_key, grad_value, grad_p, grad_segments = map(_heads_first, gradients)
    tables = [
        None if table is None else np.zeros((parts, *table.shape), query.dtype)
        for table in (position_key, position_query)
    ]
    if query_for_position is None and position_key is not None:
        query_for_position = query
    terms = map(_heads_first, (query_for_position, position_key, position_query, segment_scores))
    grad_tables = (None if table is None else table.transpose(0, 2, 1, 3) for table in tables)
    arrays = [
        *inputs, grad_query, grad_key, grad_value, added_mask(attn_mask, query.dtype), *terms,
        grad_p, *grad_tables, grad_segments,
    ]  # fmt: skip
    if not is_empty:
        table = sequence_table(inputs[0], inputs[1], cu_seqlens, cu_seqlens_k)
        backward(
            *map(view_address, arrays), as_kernel_array(distance_rows), *map(_ids, (segment_ids, segment_ids_k)),
            as_kernel_array(lse[None]), table, (parts, heads), head_dim, query.dtype.type(scale),
            np.zeros(1, np.int64), num_threads(),
        )  # fmt: skip
    grad_tables = (None if table is None else _sum_parts(table) for table in tables)
    return *gradients[:3], *grad_tables, *gradients[3:]


def _heads_first(array):
    """(tokens, heads, head_dim) as (1, heads, tokens, head_dim) with contiguous, aligned rows."""
    return None if array is None else with_unit_columns(array.transpose(1, 0, 2)[None])


def _sum_parts(parts):
    return parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
