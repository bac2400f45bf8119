"""The layout of tensors in a checkpoint: several may form one array, and axes may be in another order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from bertcore.checkpoint.config import INPUT_SCALE, SCALE
from bertcore.kernels.arrays import NativeArray
from bertcore.kernels.linear.prepared import dequantized, group_count


class Scales(NamedTuple):
    """The factors of int8 values, float32 (rows,) or 16-bit (rows, groups), and of their input, or None."""

    rows: np.ndarray
    input: np.ndarray | None


@dataclass(frozen=True)
class Layout:
    """The stored form of an array that is (rows, columns) or (rows,) when computing, with a row for each output.

    Users see names, shapes and gradients in the checkpoint's form; computing uses rearranged arrays. A tensor (d_model,
    heads, head_dim) that is (heads * head_dim, d_model) when computing has Layout((d_model, heads, head_dim), axes=(1,
    2, 0), row_axes=2).
    """

    shape: tuple[int, ...]  # the tensor's shape in the checkpoint
    axes: tuple[int, ...]  # (of `split`) in the order of computing: first the axes of the rows, then of the columns
    row_axes: int  # the number of `axes` that make up the rows; if all do, there are no columns
    # the shape with the first axis split (query, key and value of each head in turn; experts)
    split: tuple[int, ...] | None = None

    @classmethod
    def transposed(cls, rows: int, columns: int) -> Self:
        """Return the layout of a matrix that is stored as (columns, rows)."""
        return cls((columns, rows), axes=(1, 0), row_axes=1)

    @property
    def computing_shape(self) -> tuple[int, ...]:
        """The shape (rows, columns) or (rows,)."""
        permuted = [self._sizes(False)[axis] for axis in self.axes]
        rows, columns = permuted[: self.row_axes], permuted[self.row_axes :]
        return (math.prod(rows), *([math.prod(columns)] if columns else []))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint of one number for each row: the tensor's shape, with 1 for the columns."""
        return self._joined(self._sizes(True))

    def to_computing(self, stored: NativeArray) -> NativeArray:
        """Return a checkpoint's tensor in the form of computing, or its scales as (rows, 1); a view if possible."""
        rows, *columns = self.computing_shape
        is_scale = stored.shape != self.shape
        array = stored.reshape(self._sizes(is_scale)).transpose(self.axes)
        return array.reshape(rows, *(1 if is_scale else size for size in columns))

    def to_stored(self, array: NativeArray) -> NativeArray:
        """Reverse `to_computing`."""
        sizes = self._sizes(array.shape != self.computing_shape)
        stored = array.reshape([sizes[axis] for axis in self.axes])
        return stored.transpose([self.axes.index(axis) for axis in range(len(sizes))]).reshape(self._joined(sizes))

    def _sizes(self, is_scale: bool) -> tuple[int, ...]:
        """Return the sizes of `split`, or of the tensor; for scales, sizes of columns are 1."""
        rows = self.axes[: self.row_axes]
        return tuple(1 if is_scale and axis not in rows else n for axis, n in enumerate(self.split or self.shape))

    def _joined(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tensor's sizes from the sizes of `split`."""
        first = 1 + len(sizes) - len(self.shape)
        return math.prod(sizes[:first]), *sizes[first:]


class JoinedTensors:
    """The checkpoint's tensors that one array joins along its first axis, such as query, key and value.

    Users see their `names` in gradients, errors and saved files. All have the same `shape`, or the same `layout` if the
    stored form differs from the form of computing.
    """

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...] | None, layout: Layout | None):
        self.names = names
        self.layout = layout
        self.part_shape = shape if layout is None else layout.computing_shape

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by name."""
        return dict.fromkeys(self.names, self.part_shape if self.layout is None else self.layout.shape)

    def expected_scales(self, *, grouped: bool) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor's scales in a checkpoint of int8, by the tensor's name.

        Scales of groups have the shape used in computing, whatever the tensor's layout.
        """
        rows, *columns = self.part_shape
        if grouped:
            return dict.fromkeys(self.names, (rows, *map(group_count, columns)))
        return dict.fromkeys(self.names, (rows, 1) if self.layout is None else self.layout.scale_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array when computing."""
        return (len(self.names) * self.part_shape[0], *self.part_shape[1:])

    def pieces(self, array: NativeArray) -> list[Any]:
        """Return views of the parts that `array` joins, each with a tensor's rows in the form of computing."""
        rows = self.part_shape[0]
        if len(self.names) == 1:
            return [array]
        return [array[index * rows : (index + 1) * rows] for index in range(len(self.names))]

    def parts(self, array: NativeArray) -> list[tuple[str, Any]]:
        """Return (name, tensor in the checkpoint's form) for each part of `array`: values, gradients or scales."""
        pieces = self.pieces(array) if self.layout is None else map(self.layout.to_stored, self.pieces(array))
        return list(zip(self.names, pieces, strict=True))

    def joined(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Scales | None]:
        """Return the array that joins the tensors in `arrays`, and its scales if all are int8 with one input scale.

        The value of an int8 tensor is its integers times its scales, which have its name and "_scale" (with shapes
        `expected_scales`; 16-bit for groups) or "_input_scale".
        """
        parts, scales, of_inputs = ([arrays.get(name + end) for name in self.names] for end in ("", SCALE, INPUT_SCALE))
        is_one_input = all(np.array_equal(one, of_inputs[0]) for one in of_inputs)
        kinds = {None if scale is None else scale.dtype for scale in scales}
        parts, scales = [self._in_computing(part) for part in parts], [self._of_rows(scale) for scale in scales]
        if None not in kinds and len(kinds) == 1 and is_one_input:
            return _concatenated(parts), Scales(_concatenated(scales), of_inputs[0])
        wide = [
            part if scale is None else dequantized(part, scale, of_input)
            for part, scale, of_input in zip(parts, scales, of_inputs, strict=True)
        ]
        return _concatenated(wide), None

    def _in_computing(self, stored: np.ndarray) -> np.ndarray:
        return stored if self.layout is None else self.layout.to_computing(stored)

    def _of_rows(self, scale: np.ndarray | None) -> np.ndarray | None:
        return scale if scale is None or scale.dtype.itemsize == 2 else self._in_computing(scale)[:, 0]


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:  # NumPy finds no common dtype of float16 and bfloat16
        return np.concatenate(parts, dtype=np.float64 if np.dtype(np.float64) in dtypes else np.float32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
