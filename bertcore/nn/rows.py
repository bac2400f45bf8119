"""Small operations on the rows of arrays, each with its gradient rule, beside those of `functional`.

They are plain array expressions, computed at once also where a program is recorded.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.program import computed
from bertcore.nn.functional import sequence_spans, widened
from bertcore.tape import differentiable


@differentiable(lambda array, vector: (array + vector, lambda grad: (grad, _column_sums(grad))))
def add_to_rows(array: Any, vector: Any) -> Any:
    """array + vector: (rows, features) and (features,)."""
    return computed(array) + vector


def _column_sums(grad):
    wide = grad.dtype if grad.dtype.itemsize > 4 else "float64" if kernels.array_module(grad) is np else "float32"
    return grad.sum(axis=0, dtype=wide).astype(grad.dtype)


def _scaled_rows(array, weight, bias, residual):
    array = computed(array)
    return (array if residual is None else array + computed(residual)) * weight + bias


def _scale_rows_with_pullback(array, weight, bias, residual=None):
    total = array if residual is None else array + residual

    def pullback(grad):
        grad_array = grad * weight
        return grad_array, _column_sums(grad * total), _column_sums(grad), None if residual is None else grad_array

    return total * weight + bias, pullback


@differentiable(_scale_rows_with_pullback)
def scale_rows(array: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """(array + residual) * weight + bias: (rows, features) twice, and (features,) twice."""
    return _scaled_rows(array, weight, bias, residual)


def _shifts(cu_seqlens, distances):
    """(place in `distances`, tokens, their neighbours at that distance) for each sequence."""
    for first, end in sequence_spans(cu_seqlens):
        for place, distance in enumerate(distances):
            start, count = first + max(0, -distance), end - first - abs(distance)
            if count > 0:
                yield place, slice(start, start + count), slice(start + distance, start + distance + count)


def _neighbours(array, cu_seqlens, distances):
    array, count = computed(array), len(distances)
    near = kernels.array_module(array).zeros((array.shape[0], count, array.shape[1]), array.dtype)
    for place, tokens, others in _shifts(cu_seqlens, distances):
        near[tokens, place] = array[others]
    return near.reshape(array.shape[0], count * array.shape[1])


def _neighbours_with_pullback(array, *, cu_seqlens, distances):
    def pullback(grad):
        parts = grad.reshape(array.shape[0], len(distances), array.shape[1])
        total = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        for place, tokens, others in _shifts(cu_seqlens, distances):
            total[others] += parts[tokens, place]
        return (total,)

    return _neighbours(array, cu_seqlens, distances), pullback


@differentiable(_neighbours_with_pullback)
def neighbours(array: Any, *, cu_seqlens: Any, distances: Sequence[int]) -> Any:
    """For each token of (tokens, features) those at `distances` from it (1: the next one) side by side, (tokens,
    distances * features), zero where its sequence has none."""
    return _neighbours(array, cu_seqlens, distances)


def _concatenate_with_pullback(*arrays, axis=0):
    ends = np.cumsum([array.shape[axis] for array in arrays[:-1]]).tolist()
    joined = kernels.array_module(arrays[0]).concatenate(arrays, axis=axis)
    return joined, lambda grad: kernels.array_module(grad).split(grad, ends, axis=axis)


@differentiable(_concatenate_with_pullback)
def concatenate(*arrays: Any, axis: int = 0) -> Any:
    """The arrays one after the other, or with axis=1 side by side."""
    return kernels.array_module(arrays[0]).concatenate(arrays, axis=axis)


@differentiable(lambda matrix: (matrix.T, lambda grad: (grad.T,)))
def transpose(matrix: Any) -> Any:
    """(rows, columns) -> (columns, rows)."""
    return matrix.T


def _part_with_pullback(array, *, first, last):
    def pullback(grad):
        whole = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        whole[first:last] = grad
        return (whole,)

    return array[first:last], pullback


@differentiable(_part_with_pullback)
def part(array: Any, *, first: int, last: int) -> Any:
    """The rows from `first` up to `last`."""
    return array[first:last]


@differentiable(lambda array, *, factors: (array * factors, lambda grad: (grad * factors,)))
def multiply(array: Any, *, factors: Any) -> Any:
    """array * factors, which have no gradient and broadcast to its shape."""
    return computed(array) * factors


def _map_tokens(array, matrices):
    parts = widened(array).reshape(len(matrices), -1, array.shape[1])
    mapped = kernels.array_module(array).matmul(widened(matrices), parts)
    return mapped.reshape(-1, array.shape[1]).astype(array.dtype, copy=False)


def _map_tokens_with_pullback(array, *, matrices):
    return _map_tokens(array, matrices), lambda grad: (_map_tokens(grad, matrices.transpose(0, 2, 1)),)


@differentiable(_map_tokens_with_pullback)
def map_tokens(array: Any, *, matrices: Any) -> Any:
    """Each sequence's tokens as sums of tokens: matrices (sequences, outputs, inputs) times (sequences * inputs,
    features) -> (sequences * outputs, features). All sequences have one length."""
    return _map_tokens(array, matrices)


def _segment_scores(queries, bias, table):
    wide, bias = widened(queries), widened(bias)
    scores = [(wide * row).sum(axis=-1) + (bias * row).sum(axis=-1) for row in widened(table)]
    return kernels.array_module(queries).stack(scores, axis=-1).astype(queries.dtype, copy=False)


def _segment_scores_with_pullback(queries, bias, table):
    def pullback(grad):
        parts = [grad[..., column, None] for column in range(2)]
        grad_queries = sum(part * row for part, row in zip(parts, table, strict=True))
        grad_table = [_column_sums(part * queries) + _column_sums(part) * bias for part in parts]
        return grad_queries, _column_sums(grad_queries), kernels.array_module(grad).stack(grad_table)

    return _segment_scores(queries, bias, table), pullback


@differentiable(_segment_scores_with_pullback)
def segment_scores(queries: Any, bias: Any, table: Any) -> Any:
    """(queries + bias) times the two vectors of each head: (tokens, heads, head_dim), (heads, head_dim) and (2, heads,
    head_dim) -> (tokens, heads, 2) (Yang et al. 2019, arXiv:1906.08237, section 2.5)."""
    return _segment_scores(computed(queries), bias, table)
