"""Taking, cutting, joining and adding of rows and columns, each with its gradient rule.

But for `take_rows` they are plain array expressions, computed at once also where a program is recorded.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.deferred import computed
from bertcore.kernels.precision import working_dtype
from bertcore.tape import differentiable


def _add_with_pullback(left, right):
    return left + right, lambda grad: (grad, grad if right.shape == left.shape else column_sums(grad))


@differentiable(_add_with_pullback)
def add(left: Any, right: Any) -> Any:
    """left + right, of one shape, or (rows, features) and (features,)."""
    return computed(left) + computed(right)


def _scale(array, factor):
    # NumPy makes a scalar of an array without axes, and float32 of bfloat16.
    return kernels.array_module(array).asarray(array * factor, array.dtype)


@differentiable(lambda array, *, factor: (_scale(array, factor), lambda grad: (_scale(grad, factor),)))
def scale(array: Any, *, factor: Any) -> Any:
    """array * factor: a number, or an array that broadcasts to the shape of `array`; it has no gradient."""
    return _scale(computed(array), factor)


def _take_rows_with_pullback(table, *, rows, padding_row=None):
    def pullback(grad):
        grad_table = kernels.embedding_backward(grad, rows, table.shape[0])
        if padding_row is not None:
            grad_table[padding_row] = 0
        return (grad_table,)

    return kernels.embedding(rows, table), pullback


@differentiable(_take_rows_with_pullback)
def take_rows(table: Any, *, rows: Any, padding_row: int | None = None) -> Any:
    """The rows of `table` (rows, features) at the integers `rows`: an embedding, or a choice of tokens.

    `padding_row` gets no gradient from here, as torch.nn.Embedding's padding_idx does not.
    """
    return kernels.embedding(rows, table)


def _average_rows(table, rows):
    xp = kernels.array_module(rows)
    total = 0
    for column in rows.T:  # as long as the longest mention: a few
        row = kernels.embedding(xp.maximum(column, 0), table)
        wide = row.astype(working_dtype(row.dtype), copy=False)
        total = total + xp.where(column[:, None] >= 0, wide, xp.zeros((), wide.dtype))
    return (total / _counts(rows, total.dtype)).astype(row.dtype, copy=False)


def _counts(rows, dtype):
    """How many rows there are to be averaged, (means, 1), at least 1."""
    return kernels.array_module(rows).maximum((rows >= 0).sum(axis=1), 1).astype(dtype)[:, None]


def _average_rows_with_pullback(table, *, rows):
    def pullback(grad):
        means, places = kernels.array_module(rows).nonzero(rows >= 0)
        wide = grad.astype(working_dtype(grad.dtype), copy=False)
        shares = (wide / _counts(rows, wide.dtype)).astype(grad.dtype, copy=False)
        return (kernels.embedding_backward(shares[means], rows[means, places], table.shape[0]),)

    return _average_rows(table, rows), pullback


@differentiable(_average_rows_with_pullback)
def average_rows(table: Any, *, rows: Any) -> Any:
    """The mean of several rows of `table` (rows, features), (means, features), zeros where there are none.

    `rows` are integers, (means, most of a mean) with at least one column, -1 where a mean has no more.
    """
    return _average_rows(table, rows)


def _slice_rows_with_pullback(array, *, first, last):
    def pullback(grad):
        whole = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        whole[first:last] = grad
        return (whole,)

    return array[first:last], pullback


@differentiable(_slice_rows_with_pullback)
def slice_rows(array: Any, *, first: int, last: int) -> Any:
    """The rows from `first` up to `last`."""
    return array[first:last]


def _slice_columns_with_pullback(array, *, first, last):
    def pullback(grad):
        full = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        full[:, first:last] = grad
        return (full,)

    return array[:, first:last], pullback


@differentiable(_slice_columns_with_pullback)
def slice_columns(array: Any, *, first: int, last: int) -> Any:
    """The columns from `first` up to `last` of (rows, features)."""
    return array[:, first:last]


@differentiable(lambda array, *, shape: (array.reshape(shape), lambda grad: (grad.reshape(array.shape),)))
def reshape(array: Any, *, shape: tuple[int, ...]) -> Any:
    """`array` in another shape."""
    return array.reshape(shape)


@differentiable(lambda matrix: (matrix.T, lambda grad: (grad.T,)))
def transpose(matrix: Any) -> Any:
    """(rows, columns) -> (columns, rows)."""
    return matrix.T


def _concatenate_with_pullback(*arrays, axis=0):
    ends = np.cumsum([array.shape[axis] for array in arrays[:-1]]).tolist()
    joined = kernels.array_module(arrays[0]).concatenate(arrays, axis=axis)
    return joined, lambda grad: kernels.array_module(grad).split(grad, ends, axis=axis)


@differentiable(_concatenate_with_pullback)
def concatenate(*arrays: Any, axis: int = 0) -> Any:
    """The arrays one after the other, or with axis=1 side by side."""
    return kernels.array_module(arrays[0]).concatenate(arrays, axis=axis)


def _merge_rows(first, second, first_rows, second_rows):
    merged = kernels.array_module(first).empty((first.shape[0] + second.shape[0], first.shape[1]), first.dtype)
    merged[first_rows], merged[second_rows] = first, second
    return merged


def _merge_rows_with_pullback(first, second, *, first_rows, second_rows):
    return _merge_rows(first, second, first_rows, second_rows), lambda grad: (grad[first_rows], grad[second_rows])


@differentiable(_merge_rows_with_pullback)
def merge_rows(first: Any, second: Any, *, first_rows: Any, second_rows: Any) -> Any:
    """The rows of both arrays in one, (rows of both, features), where `first_rows` and `second_rows` say."""
    return _merge_rows(first, second, first_rows, second_rows)


def sequence_spans(cu_seqlens: Any) -> list[tuple[int, int]]:
    """(first token, end) of each sequence that has tokens."""
    return [(first, end) for first, end in itertools.pairwise(cu_seqlens.tolist()) if end > first]


def _average_sequences(hidden, cu_seqlens):
    means = kernels.array_module(hidden).zeros((len(sequence_spans(cu_seqlens)), hidden.shape[1]), hidden.dtype)
    for mean, (first, end) in zip(means, sequence_spans(cu_seqlens), strict=True):
        mean[...] = hidden[first:end].mean(axis=0)
    return means


def _average_sequences_with_pullback(hidden, *, cu_seqlens):
    def pullback(grad):
        spread = kernels.array_module(grad).empty(hidden.shape, grad.dtype)
        for row, (first, end) in zip(grad, sequence_spans(cu_seqlens), strict=True):
            spread[first:end] = row / (end - first)
        return (spread,)

    return _average_sequences(hidden, cu_seqlens), pullback


@differentiable(_average_sequences_with_pullback)
def average_sequences(hidden: Any, *, cu_seqlens: Any) -> Any:
    """The mean over each sequence that has tokens, (sequences, features)."""
    return _average_sequences(hidden, cu_seqlens)


def _shifts(cu_seqlens, distances):
    """(place in `distances`, tokens, their neighbours at that distance) for each sequence."""
    for first, end in sequence_spans(cu_seqlens):
        for place, distance in enumerate(distances):
            start, count = first + max(0, -distance), end - first - abs(distance)
            if count > 0:
                yield place, slice(start, start + count), slice(start + distance, start + distance + count)


def _take_neighbours(array, cu_seqlens, distances):
    array, count = computed(array), len(distances)
    near = kernels.array_module(array).zeros((array.shape[0], count, array.shape[1]), array.dtype)
    for place, tokens, others in _shifts(cu_seqlens, distances):
        near[tokens, place] = array[others]
    return near.reshape(array.shape[0], count * array.shape[1])


def _take_neighbours_with_pullback(array, *, cu_seqlens, distances):
    def pullback(grad):
        parts = grad.reshape(array.shape[0], len(distances), array.shape[1])
        total = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        for place, tokens, others in _shifts(cu_seqlens, distances):
            total[others] += parts[tokens, place]
        return (total,)

    return _take_neighbours(array, cu_seqlens, distances), pullback


@differentiable(_take_neighbours_with_pullback)
def take_neighbours(array: Any, *, cu_seqlens: Any, distances: Sequence[int]) -> Any:
    """For each token of (tokens, features) those at `distances` from it (1: the next one) side by side, (tokens,
    distances * features), zero where its sequence has none."""
    return _take_neighbours(array, cu_seqlens, distances)


def _mix_rows(array, matrices):
    parts = widened(array).reshape(len(matrices), -1, array.shape[1])
    mapped = kernels.array_module(array).matmul(widened(matrices), parts)
    return mapped.reshape(-1, array.shape[1]).astype(array.dtype, copy=False)


def _mix_rows_with_pullback(array, *, matrices):
    return _mix_rows(array, matrices), lambda grad: (_mix_rows(grad, matrices.transpose(0, 2, 1)),)


@differentiable(_mix_rows_with_pullback)
def mix_rows(array: Any, *, matrices: Any) -> Any:
    """Each sequence's tokens as sums of tokens: matrices (sequences, outputs, inputs) times (sequences * inputs,
    features) -> (sequences * outputs, features). All sequences have one length."""
    return _mix_rows(array, matrices)


def widened(array: Any) -> Any:
    """`array` in float32 if it is of lower precision: what sums are taken in."""
    return array.astype("float32") if array.dtype.itemsize < 4 else array


def column_sums(grad):
    wide = grad.dtype if grad.dtype.itemsize > 4 else "float64" if kernels.array_module(grad) is np else "float32"
    return grad.sum(axis=0, dtype=wide).astype(grad.dtype)
