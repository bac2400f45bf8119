"""Layouts: tensors whose axes lie otherwise in a checkpoint than computing wants them."""

import math
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Layout:
    """How a checkpoint stores what computes as (rows, columns), a row for each output of a linear map, or as (rows,).

    Names, shapes and gradients that users see are the checkpoint's; the arrays that computing reads are rearranged.
    (d_model, heads, head_dim), to compute as (heads * head_dim, d_model), is Layout((d_model, heads, head_dim),
    axes=(1, 2, 0), row_axes=2).

    Attributes:
        shape: of the tensor in the checkpoint.
        axes: its axes in the order of computing: first those that make up the rows, then those of the columns.
        row_axes: how many of `axes` make up the rows; where all do, there are no columns.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    row_axes: int

    @classmethod
    def transposed(cls, rows: int, columns: int) -> Self:
        """Of a matrix that is stored as (columns, rows)."""
        return cls((columns, rows), axes=(1, 0), row_axes=1)

    @property
    def _permuted(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def computing_shape(self) -> tuple[int, ...]:
        """(rows, columns) or (rows,)."""
        sizes = self._permuted
        rows = math.prod(sizes[: self.row_axes])
        return (rows,) if self.row_axes == len(sizes) else (rows, math.prod(sizes[self.row_axes :]))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint of what there is one of for each row: the tensor's, with 1 for the columns."""
        kept = self.axes[: self.row_axes]
        return tuple(size if axis in kept else 1 for axis, size in enumerate(self.shape))

    def to_computing(self, stored: Any) -> Any:
        """A tensor of the checkpoint as computing has it, or scales of `scale_shape` as (rows, 1); a view if can be."""
        columns = () if self.row_axes == len(self.axes) else (-1 if stored.size else self.computing_shape[1],)
        return stored.transpose(self.axes).reshape(self.computing_shape[0], *columns)

    def to_stored(self, array: Any) -> Any:
        """The reverse of `to_computing`."""
        sizes = self._permuted
        if array.shape != self.computing_shape:  # one number for each row
            sizes = tuple(size if place < self.row_axes else 1 for place, size in enumerate(sizes))
        return array.reshape(sizes).transpose(tuple(self.axes.index(axis) for axis in range(len(self.axes))))
