"""A weight in the form that one backend needs."""

from typing import Any

import numpy as np

from ..arrays import NativeArray

LOW_PRECISION = ("bfloat16", "int8", "int8_weight_only")
GROUP = 32  # values along in_features that share a scale in int8_weight_only


class PreparedWeight:
    """A weight in the form that one backend needs; made by `prepare_weight`, used in place of the array.

    Each backend has its own kind. The first `linear_backward` also prepares the transpose, which is kept with the
    weight.

    Attributes:
        backend: the backend it belongs to.
        out_features, in_features: its shape.
        dtype: its dtype; bfloat16 and int8 on the CPU are for float32 inputs.
        scale: of an int8 weight, float32 (out_features,), or in int8_weight_only bfloat16 (out_features, groups of
            GROUP in_features); read-only; None for other weights.
        input_scale: the factors of the input's columns before they are rounded to int8, float32 (in_features,),
            read-only; None without factors.
        is_grouped: whether it is in int8_weight_only: inputs stay float32.
    """

    backend: str

    def __init__(self, weight: NativeArray, scale: np.ndarray | None = None, input_scale: np.ndarray | None = None):
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.is_grouped = is_grouped(scale)
        self._scale, self.input_scale = _read_only(scale), _read_only(input_scale)
        self._parts: list[PreparedWeight] = []

    @property
    def scale(self) -> Any:
        return self._scale

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def takes_float32(self) -> bool:
        """Return True for a low-precision form, which multiplies float32 inputs and gives float32."""
        return self.backend != "cupy" and self.dtype.name in LOW_PRECISION

    def to_array(self) -> NativeArray:
        """Return the weight as given, (out_features, in_features), as a NumPy or CuPy array, float32 for int8."""
        stored = self._stored()
        return stored if self.scale is None else dequantized(stored, self.scale, self.input_scale)

    def integers(self) -> np.ndarray:
        """Return the values of an int8 weight, int8 (out_features, in_features), without `scale`."""
        if self.dtype != np.int8:
            raise TypeError(f"this weight is prepared as {self.dtype}, expected int8")
        return self._stored()

    def _stored(self) -> NativeArray:
        """Return a copy of the values in the weight's dtype, (out_features, in_features)."""
        raise NotImplementedError

    def parts(self, count: int) -> list["PreparedWeight"]:
        """Return the weights of `count` equal shares of the rows; made once, without a copy if possible."""
        if len(self._parts) != count:
            size = self.out_features // count
            self._parts = self._split([slice(part * size, (part + 1) * size) for part in range(count)])
        return self._parts

    def _split(self, shares: list[slice]) -> list["PreparedWeight"]:
        values, scale = self._stored(), self.scale
        more = () if scale is None else (self.input_scale,) * (not self.is_grouped)
        scales = [() if scale is None else (scale[rows], *more) for rows in shares]
        return [type(self)(values[rows], *of_rows) for rows, of_rows in zip(shares, scales, strict=True)]

    def __repr__(self) -> str:
        return f"PreparedWeight({self.out_features}, {self.in_features}, {self.dtype}, backend={self.backend!r})"


def _read_only(array: np.ndarray | None) -> np.ndarray | None:
    """Return a read-only copy; None for None."""
    if array is None:
        return None
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def is_grouped(scale: NativeArray | None) -> bool:
    """Return whether these are the scales of int8_weight_only."""
    return scale is not None and scale.ndim == 2


def group_count(in_features: int) -> int:
    """Return the number of groups of `in_features` values."""
    return -(-in_features // GROUP)


def dequantized(values: np.ndarray, scale: np.ndarray, input_scale: np.ndarray | None = None) -> np.ndarray:
    """Return the float32 weight for int8 values and the scales of a PreparedWeight."""
    if is_grouped(scale):
        return values * np.repeat(scale.astype(np.float32), GROUP, axis=1)[:, : values.shape[1]]
    weight = values * scale[:, None]
    return weight if input_scale is None else weight * input_scale
