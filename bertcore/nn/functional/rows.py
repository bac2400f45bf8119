"""Operations that take, slice, join and add rows and columns, each with its gradient rule."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.affine import AFFINE
from bertcore.kernels.arrays import NativeArray
from bertcore.kernels.deferred import computed
from bertcore.kernels.embedding import EMBEDDING, EmbeddingSaved
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Addend, Tensor


@operation(has_step=True)
def add(run: Pass, left: Tensor, right: Tensor) -> Tensor:
    """Return left + right, of the same shape, or (rows, features) and (features,) or (rows, 1)."""

    def pullback(grad):
        if right.shape == left.shape:
            return grad, grad
        if right.ndim == 1:
            return grad, column_sums(grad)
        return grad, grad.sum(axis=1, dtype=_sum_dtype(grad), keepdims=True).astype(grad.dtype)

    return left + right, pullback


@add.inference
def _add(run, left, right):
    if run.is_deferred and left.ndim == 2 and right.shape == left.shape:  # programs record a sum as an `affine` step
        ones, zeros = np.ones(left.shape[1], left.dtype), np.zeros(left.shape[1], left.dtype)
        return AFFINE.forward(run.backend, left, ones, zeros, right)
    return computed(left) + computed(right)


@operation()
def shift(run: Pass, array: Tensor, *, by: float) -> Tensor:
    """Return array + by."""
    return array + by, lambda grad: (grad,)


@operation()
def scale(run: Pass, array: Tensor, *, factor: float | NativeArray) -> Tensor:
    """Return array * factor; the factor is a number or an array that broadcasts, and has no gradient."""
    # NumPy turns a 0-d array into a scalar, and bfloat16 into float32.
    xp, dtype = kernels.array_module(array), array.dtype
    return xp.asarray(array * factor, dtype), lambda grad: (xp.asarray(grad * factor, dtype),)


@operation()
def unit_rows(run: Pass, rows: Tensor) -> Tensor:
    """Return rows, (rows, features), scaled to length 1; rows of zeros do not change."""
    xp = kernels.array_module(rows)
    divisors = xp.sqrt((rows * rows).sum(axis=1, keepdims=True)).clip(1e-12)  # as in torch.nn.functional.normalize
    units = rows / divisors

    def pullback(grad):
        along = (grad * units).sum(axis=1, keepdims=True) * (divisors > 1e-12)
        return ((grad - along * units) / divisors,)

    return units, pullback


@operation(has_step=True)
def take_rows(run: Pass, table: Tensor, *, rows: NativeArray, padding_row: int | None = None) -> Tensor:
    """Return the rows of `table`, (rows, features), at the indices `rows`: an embedding, or a choice of tokens.

    Like torch.nn.Embedding's padding_idx, `padding_row` gets no gradient here.
    """

    def pullback(grad):
        if padding_row is None:
            return (_RowsGradient(run, grad, rows, table.shape[0]),)
        xp, learns = kernels.array_module(rows), rows != padding_row
        if xp is not np:  # choosing rows would wait for their number; the kernel skips rows outside the table
            return (_RowsGradient(run, grad, xp.where(learns, rows, -1), table.shape[0]),)
        return (_RowsGradient(run, grad[learns], rows[learns], table.shape[0]),)

    return EMBEDDING.forward(run.backend, rows, table), pullback


@take_rows.inference
def _take_rows(run, table, *, rows, padding_row=None):
    return EMBEDDING.forward(run.backend, rows, table)


@dataclass(frozen=True)
class _RowsGradient(Addend):
    """A table's gradient, stored as the gradients of the rows taken: a table is much larger than a batch."""

    run: Pass
    grad: NativeArray
    rows: NativeArray
    table_rows: int

    def added_to(self, array: Any | None, dtype: np.dtype | None = None) -> NativeArray:
        grad = self.grad if dtype is None else self.grad.astype(dtype, copy=False)
        return EMBEDDING.backward(self.run.backend, grad, EmbeddingSaved(self.rows, self.table_rows), array)


@operation(has_step=True)
def slice_rows(run: Pass, array: Tensor, *, first: int, last: int) -> Tensor:
    """Return the rows from `first` to `last` - 1."""

    def pullback(grad):
        whole = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        whole[first:last] = grad
        return (whole,)

    return array[first:last], pullback


@operation(has_step=True)
def slice_columns(run: Pass, array: Tensor, *, first: int, last: int) -> Tensor:
    """Return the columns from `first` to `last` - 1 of (rows, columns, ...)."""

    def pullback(grad):
        whole = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        whole[:, first:last] = grad
        return (whole,)

    return array[:, first:last], pullback


@operation()
def split_columns(run: Pass, array: Tensor, *, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """Return a tuple of views of (rows, columns) with these widths."""
    ends = np.cumsum(widths).tolist()
    places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def pullback(*grads):
        whole = kernels.array_module(array).zeros(array.shape, array.dtype)
        for place, grad in zip(places, grads, strict=True):
            if grad is not None:
                whole[:, place] = grad
        return (whole,)

    return tuple(array[:, place] for place in places), pullback


@operation(has_step=True)
def reshape(run: Pass, array: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return `array` in another shape."""
    return array.reshape(shape), lambda grad: (grad.reshape(array.shape),)


@operation()
def transpose(run: Pass, matrix: Tensor) -> Tensor:
    """Transpose (rows, columns) to (columns, rows)."""
    return matrix.T, lambda grad: (grad.T,)


@operation()
def concatenate(run: Pass, *arrays: Tensor, axis: int = 0) -> Tensor:
    """Concatenate arrays along `axis`."""
    ends = np.cumsum([array.shape[axis] for array in arrays[:-1]]).tolist()
    xp = kernels.array_module(arrays[0])
    return xp.concatenate(arrays, axis=axis), lambda grad: xp.split(grad, ends, axis=axis)


def sequence_spans(cu_seqlens: NativeArray) -> list[tuple[int, int]]:
    """Return (first token, end) of each sequence that has tokens."""
    return [(first, end) for first, end in itertools.pairwise(cu_seqlens.tolist()) if end > first]


@operation()
def average_sequences(run: Pass, hidden: Tensor, *, cu_seqlens: NativeArray) -> Tensor:
    """Return the mean over each sequence that has tokens, (sequences, features)."""
    spans = sequence_spans(cu_seqlens)
    means = kernels.array_module(hidden).zeros((len(spans), hidden.shape[1]), hidden.dtype)
    for row, (first, end) in zip(means, spans, strict=True):
        row[...] = hidden[first:end].mean(axis=0)

    def pullback(grad):
        spread = kernels.array_module(grad).empty(hidden.shape, grad.dtype)
        for row, (first, end) in zip(grad, spans, strict=True):
            spread[first:end] = row / (end - first)
        return (spread,)

    return means, pullback


@operation()
def take_neighbours(run: Pass, array: Tensor, *, cu_seqlens: NativeArray, distances: Sequence[int]) -> Tensor:
    """Return for each token the concatenated tokens at `distances` from it (1: the next one).

    Maps (tokens, features) to (tokens, distances * features), zero beyond the ends of a sequence.
    """
    (tokens, features), count = array.shape, len(distances)
    xp = kernels.array_module(array)
    near = xp.empty((tokens, count, features), array.dtype)
    for place, distance in enumerate(distances):
        near[:, place] = _shifted(array, cu_seqlens, distance)

    def pullback(grad):
        parts = grad.reshape(tokens, count, features)
        total = xp.zeros(array.shape, grad.dtype)
        for place, distance in enumerate(distances):
            total += _shifted(parts[:, place], cu_seqlens, -distance)
        return (total,)

    return near.reshape(tokens, count * features), pullback


def _shifted(array, cu_seqlens, distance):
    """Return the row at `distance` from each row of (tokens, features) in its sequence; zeros beyond its ends.

    The host does not read the offsets, which would wait for a GPU. Rows behind the last sequence have no neighbours.
    """
    if not distance:
        return array
    xp, tokens = kernels.array_module(array), len(array)
    places = xp.arange(tokens)
    sequence = xp.minimum(xp.searchsorted(cu_seqlens, places, side="right"), len(cu_seqlens) - 1)
    others = places + distance
    is_inside = (others >= cu_seqlens[sequence - 1]) & (others < cu_seqlens[sequence])
    return xp.where(is_inside[:, None], array[xp.clip(others, 0, max(tokens - 1, 0))], xp.zeros((), array.dtype))


def widened(array: NativeArray) -> NativeArray:
    """Return `array` in float32 if it has lower precision, for sums."""
    return array.astype("float32") if array.dtype.itemsize < 4 else array


def column_sums(grad: NativeArray) -> NativeArray:
    """Return the sum over the rows in the dtype of `grad`, computed in float64 (float32 on a GPU)."""
    return grad.sum(axis=0, dtype=_sum_dtype(grad)).astype(grad.dtype)


def _sum_dtype(array: NativeArray) -> np.dtype | str:
    is_wide = array.dtype.itemsize > 4
    return array.dtype if is_wide else "float64" if kernels.array_module(array) is np else "float32"
