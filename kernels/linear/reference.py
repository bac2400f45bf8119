"""Affine map with optional activation and residual.

    output = activation(input @ weight.T + bias) + residual

weight is (out_features, in_features), as checkpoints store it. The gradients of input @ weight.T + bias, with
g = grad_output, are

    grad_input = g @ weight,    grad_weight = g.T @ input,    grad_bias = sum of g over the rows

Low precision, for a float32 input and a weight prepared as such:

    bfloat16   the input is rounded to bfloat16, too; products and sums are float32. Backward likewise: g and the input
    are rounded for grad_input and grad_weight, but g is not rounded for grad_bias. CPUs without fast products of
               bfloat16 widen the weight (backend numba): there neither the input nor g is rounded.
    int8       the weight is values * scale, one scale for each output channel (`quantize_weight`), and the input is
               (levels - zero) * step, one zero and step for each row (`quantize_rows`), so that a row's result does not
               depend on its neighbours. The sums are exact integers; a row that holds inf or NaN becomes NaN.
               With an input_scale the columns of the input are multiplied by it first.
    int8_weight_only
               the weight is values * scale, with a scale for each 32 neighbours of a channel (`quantize_groups`). The
               input stays as it is; products and sums are float32.
"""

import numpy as np

from ..activation import reference as _activation
from ..arrays import bfloat16, ieee_arithmetic, sum_rows, widen
from .prepared import GROUP, PreparedWeight, dequantized, group_count

STEPS = 254  # between the levels of a row: with 255, zero + the greatest level could round up to 256


class ReferenceWeight(PreparedWeight):
    """A C-contiguous copy of a weight, independent of later changes to the original array."""

    backend = "numpy"

    def __init__(self, weight, scale=None, input_scale=None):
        super().__init__(weight, scale, input_scale)
        self.array = np.array(weight, order="C")

    def _stored(self):
        return self.array.copy()


def prepare_weight(weight, scale, input_scale):
    """Return the prepared form of an (out_features, in_features) weight.

    For int8 `scale` is (out_features,) float32, and `input_scale` (in_features,) or None.
    """
    return ReferenceWeight(weight, scale, input_scale)


@ieee_arithmetic
def round_weight(weight):
    """Return the weight rounded to bfloat16."""
    return weight.astype(bfloat16())


@ieee_arithmetic
def quantize_weight(weight):
    """Return (values int8 in -127..127, scale float32) of a finite weight, symmetric for each row (output channel)."""
    wide = np.asarray(weight, np.float32)
    scale = np.abs(wide).max(axis=1, initial=0) / np.float32(127)
    values = np.rint(wide / np.where(scale == 0, 1, scale)[:, None])
    return np.clip(values, -127, 127).astype(np.int8), scale  # a scale below float32's normal numbers is inexact


@ieee_arithmetic
def quantize_groups(weight):
    """Return int8 values in -127..127 and bfloat16 scales (rows, groups) of a finite weight, symmetric for each group.

    Values are divided by the stored scale. Scales in float16 would end at 6e-8; float32 would be no more accurate.
    """
    rows, columns = weight.shape
    groups = np.zeros((rows, group_count(columns), GROUP), np.float32)
    padded = rows, group_count(columns) * GROUP
    groups.reshape(padded)[:, :columns] = weight
    scale = (np.abs(groups).max(axis=2) / np.float32(127)).astype(bfloat16())
    wide = scale.astype(np.float32)[:, :, None]
    values = np.clip(np.rint(groups / np.where(wide == 0, 1, wide)), -127, 127).astype(np.int8)
    return np.ascontiguousarray(values.reshape(padded)[:, :columns]), scale


@ieee_arithmetic
def quantize_rows(x):
    """Return (levels, zero, step) of float32 rows: x is about (levels - zero) * step, levels 0 to 255, zeros exact.

    All are float32 arrays, zero and step (rows, 1); a row with inf or NaN, or whose range overflows, has step NaN.
    """
    low, high = (limit(x, axis=1, initial=0, keepdims=True) for limit in (np.min, np.max))
    span = high - low
    usable = np.isfinite(span) & (span >= np.finfo(np.float32).tiny * STEPS)  # those with a finite inverse
    inverse = np.where(usable, np.float32(STEPS) / np.where(usable, span, 1), np.float32(0))
    zero = np.rint(-np.where(usable, low, 0) * inverse)
    levels = np.rint(np.where(usable, x, 0) * inverse) + zero
    return levels, zero, np.where(np.isfinite(span), span / np.float32(STEPS), np.float32(np.nan))


@ieee_arithmetic
def linear(input, weight, bias, activation, residual):
    """Return (rows, out_features); bias, (out_features,), and residual, of the output's shape, may be None."""
    output = _product(input, weight)
    if bias is not None:
        output = output + widen(bias)
    if activation is not None:
        output = _activation.activation(output, activation, None)
    if residual is not None:
        output = output + widen(residual)
    return np.asarray(output, input.dtype)


@ieee_arithmetic
def linear_backward(grad_output, input, weight, bias, needs_weight, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None), the last two in `dtype`."""
    grad_bias = None if bias is None else sum_rows(widen(grad_output)).astype(dtype)
    grad, x, w = widen(_rounded(grad_output, weight)), widen(_rounded(input, weight)), _widened(weight)
    grad_weight = np.asarray(grad.T @ x, dtype) if needs_weight else None
    return np.asarray(grad @ w, input.dtype), grad_weight, grad_bias


@ieee_arithmetic
def linear_weight_gradient(grad_output, input, dtype, add_to):
    """Return grad_output.T @ input in `dtype`, added to the array `add_to` of that dtype if it is not None."""
    product = widen(grad_output).T @ widen(input)
    if add_to is None:
        return product.astype(dtype, copy=False)
    add_to[...] = (widen(add_to) + product).astype(dtype)
    return add_to


def _product(input, weight):
    if weight.dtype == np.int8 and not weight.is_grouped:
        levels, zero, step = quantize_rows(input if weight.input_scale is None else input * weight.input_scale)
        values = weight.array.astype(np.float64)  # exact for sums of integers
        sums = levels.astype(np.float64) @ values.T - zero * values.sum(axis=1)
        return sums.astype(np.float32) * (step * weight.scale)
    return widen(_rounded(input, weight)) @ _widened(weight).T


def _rounded(rows, weight):
    """Return float32 rows rounded to bfloat16 if the weight is bfloat16, else unchanged."""
    return rows if weight.dtype in (rows.dtype, np.int8) else rows.astype(weight.dtype)


def _widened(weight):
    if not isinstance(weight, ReferenceWeight):
        return widen(weight)
    return widen(weight.array) if weight.scale is None else dequantized(weight.array, weight.scale)
