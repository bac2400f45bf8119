"""The layout of tensors in a checkpoint: several are joined in one array, and axes may have another order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from bertcore.checkpoint.config import INPUT_SCALE, SCALE
from bertcore.kernels.linear.prepared import dequantized, group_count


class Scales(NamedTuple):
    """The factors of int8 values, float32 (rows,) or of 16 bits (rows, groups), and of their input, or None."""

    rows: np.ndarray
    input: np.ndarray | None


@dataclass(frozen=True)
class Layout:
    """The stored form of an array that is (rows, columns) or (rows,) in computing, a row for each output of a map.

    Names, shapes and gradients that users see are the checkpoint's; the arrays that computing reads are rearranged. A
    tensor (d_model, heads, head_dim) that is (heads * head_dim, d_model) in computing has
    Layout((d_model, heads, head_dim), axes=(1, 2, 0), row_axes=2).

    Attributes:
        shape: of the tensor in the checkpoint.
        split: the shape with the first axis cut into several (query, key and value of each head in turn; experts);
            None where it is one.
        axes: the axes (of `split`) in the order of computing: first those of the rows, then those of the columns.
        row_axes: how many of `axes` make up the rows; where all do, there are no columns.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    row_axes: int
    split: tuple[int, ...] | None = None

    @classmethod
    def transposed(cls, rows: int, columns: int) -> Self:
        """The layout of a matrix that is stored as (columns, rows)."""
        return cls((columns, rows), axes=(1, 0), row_axes=1)

    @property
    def computing_shape(self) -> tuple[int, ...]:
        """(rows, columns) or (rows,)."""
        permuted = [self._sizes(False)[axis] for axis in self.axes]
        rows, columns = permuted[: self.row_axes], permuted[self.row_axes :]
        return (math.prod(rows), *([math.prod(columns)] if columns else []))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint of one number for each row: the tensor's shape, with 1 for the columns."""
        return self._joined(self._sizes(True))

    def to_computing(self, stored: Any) -> Any:
        """A checkpoint's tensor as computing has it, or scales of `scale_shape` as (rows, 1); a view if possible."""
        rows, *columns = self.computing_shape
        is_scale = stored.shape != self.shape
        array = stored.reshape(self._sizes(is_scale)).transpose(self.axes)
        return array.reshape(rows, *(1 if is_scale else size for size in columns))

    def to_stored(self, array: Any) -> Any:
        """The reverse of `to_computing`."""
        sizes = self._sizes(array.shape != self.computing_shape)
        stored = array.reshape([sizes[axis] for axis in self.axes])
        return stored.transpose([self.axes.index(axis) for axis in range(len(sizes))]).reshape(self._joined(sizes))

    def _sizes(self, is_scale: bool) -> tuple[int, ...]:
        """Return the sizes of `split`, or of the tensor; of one number for each row those of the columns are 1."""
        rows = self.axes[: self.row_axes]
        return tuple(1 if is_scale and axis not in rows else n for axis, n in enumerate(self.split or self.shape))

    def _joined(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tensor's sizes from those of `split`."""
        first = 1 + len(sizes) - len(self.shape)
        return math.prod(sizes[:first]), *sizes[first:]


class JoinedTensors:
    """The tensors of a checkpoint that one array joins along its first axis: query, key and value become one matrix.

    Args:
        names: of the tensors, which have one shape; users see these names in gradients, errors and saved files.
        shape: the shape of one of them; that of `layout` by default.
        layout: how the checkpoint stores one, where that is not how computing reads it.
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

        Scales of groups have the shape of computing, whatever the tensor's layout.
        """
        rows, *columns = self.part_shape
        if grouped:
            return dict.fromkeys(self.names, (rows, *map(group_count, columns)))
        return dict.fromkeys(self.names, (rows, 1) if self.layout is None else self.layout.scale_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array in computing."""
        return (len(self.names) * self.part_shape[0], *self.part_shape[1:])

    def pieces(self, array: Any) -> list[Any]:
        """Views of what `array` joins, a tensor's rows each, as computing has them."""
        rows = self.part_shape[0]
        if len(self.names) == 1:
            return [array]
        return [array[index * rows : (index + 1) * rows] for index in range(len(self.names))]

    def parts(self, array: Any) -> list[tuple[str, Any]]:
        """(name, tensor as the checkpoint stores it) for what `array` joins: values, their gradient, or scales."""
        pieces = self.pieces(array) if self.layout is None else map(self.layout.to_stored, self.pieces(array))
        return list(zip(self.names, pieces, strict=True))

    def joined(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Scales | None]:
        """The whole array of the tensors in `arrays`, and its scales if all of them are int8 of one input's scales.

        An int8 tensor stands for itself times its scales, which have its name and "_scale" (their shapes are
        `expected_scales`; those of groups have 16 bits) or "_input_scale".
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
        """A tensor's scales as `Scales` has them."""
        return scale if scale is None or scale.dtype.itemsize == 2 else self._in_computing(scale)[:, 0]


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:  # float16 and bfloat16 have no dtype in common that NumPy would find
        return np.concatenate(parts, dtype=np.float64 if np.dtype(np.float64) in dtypes else np.float32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
