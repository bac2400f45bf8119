"""The terms of relative position and of segments in the CUDA backward of attention, by tables of products.

What a query or a key adds to a score depends on the row of the table alone: one product of all queries, or keys, with a
table says it for every row, (heads, tokens, rows) in float32. Their gradients are those of the scores, added up by row;
from these one product each gives those of the vectors and of the table. The tokens of a batch are counted on.
"""

from typing import Any, NamedTuple

import numpy as np

from .. import _cuda
from .problem import contiguous


class Products(NamedTuple):
    """What the kernels take in struct Terms of backward.cuh, unscaled; None where absent."""

    to_position: Any = None  # (heads, tokens, rows)
    from_position: Any = None  # (heads, tokens of keys, rows)
    segment_scores: Any = None  # (heads, tokens, 2)
    segment_ids: Any = None
    segment_ids_k: Any = None


def products_of(query, key, relative):
    """The products of these queries and keys with the tables of `relative`, which may be None."""
    if relative is None:
        return Products()
    to_position = from_position = scores = None
    if relative.position_key is not None:
        to_position = _matmul(_looking(query, relative), _swapped(_by_head(relative.position_key)))
    if relative.position_query is not None:
        from_position = _matmul(_for_heads(key, query.shape[1]), _swapped(_by_head(relative.position_query)))
    if relative.segment_scores is not None:
        scores = by_token(relative.segment_scores)
    return Products(to_position, from_position, scores, *contiguous(relative.segment_ids, relative.segment_ids_k))


def by_token(array):
    """(batch, heads, length, size) as (heads, batch * length, size) of float32, contiguous."""
    batch, heads, length, size = array.shape
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array.transpose(1, 0, 2, 3).astype(np.float32).reshape(heads, batch * length, size))


def differentiate_query_terms(per_row, query, relative):
    """(gradient of the vectors, (heads, tokens, head_dim), of the (rows, heads, head_dim) table position_key)."""
    return _differentiate(per_row, _looking(query, relative), relative.position_key)


def differentiate_key_terms(per_row, query, key, relative):
    """(gradient of the keys, (heads of keys, tokens, head_dim), of the table position_query)."""
    heads, heads_k = query.shape[1], key.shape[1]
    of_keys, of_table = _differentiate(per_row, _for_heads(key, heads), relative.position_query)
    return of_keys.reshape(heads_k, heads // heads_k, *of_keys.shape[1:]).sum(axis=1), of_table


def _differentiate(per_row, vectors, table):
    of_table = _matmul(_swapped(per_row), vectors)
    return _matmul(per_row, _by_head(table)), of_table.transpose(1, 0, 2).astype(table.dtype)


def _looking(query, relative):
    return by_token(query if relative.query_for_position is None else relative.query_for_position)


def _for_heads(key, heads):
    return _cuda.array_module(key).repeat(by_token(key), heads // key.shape[1], axis=0)


def _by_head(table):
    """(rows, heads, head_dim) as (heads, rows, head_dim) of float32."""
    return table.transpose(1, 0, 2).astype(np.float32)


def _swapped(matrices):
    return matrices.transpose(0, 2, 1)


def _matmul(left, right):
    return _cuda.array_module(left).matmul(left, right)
