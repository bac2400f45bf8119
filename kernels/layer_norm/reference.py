"""Layer normalisation over the last axis (Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450).

With x = input + residual, and mean and variance (of the population: divided by the width) taken over the last axis,

    normalised = (x - mean) / sqrt(variance + eps)
    output     = normalised * weight + bias

The variance is the mean of the squared deviations from the mean (two passes): E[x^2] - mean^2 cancels when the mean is
large. For the gradient, with g the gradient of `normalised`,

    grad_input = (g - mean(g) - normalised * mean(g * normalised)) / sqrt(variance + eps)

and the residual's gradient is the same.
"""

import numpy as np

from ..arrays import ieee_arithmetic, sum_rows, widen


@ieee_arithmetic
def layer_norm(input, weight, bias, eps, residual):
    """Return the norm of (..., width); weight and bias are (width,) or None, residual has input's shape or is None."""
    output, _ = normalise(sum_with_residual(input, residual), eps, centred=True)
    if weight is not None:
        output = output * widen(weight)
    if bias is not None:
        output = output + widen(bias)
    return np.asarray(output, input.dtype)


@ieee_arithmetic
def layer_norm_backward(grad_output, input, weight, bias, eps, residual, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None), the last two in `dtype`.

    Mean and variance are computed again from the input.
    """
    normalised, inverse_deviation = normalise(sum_with_residual(input, residual), eps, centred=True)
    grad = widen(grad_output)
    grad_weight = None if weight is None else sum_rows(grad * normalised).astype(dtype)
    grad_bias = None if bias is None else sum_rows(grad).astype(dtype)
    if weight is not None:
        grad = grad * widen(weight)
    along = normalised * mean_of_rows(grad * normalised)
    grad_input = (grad - mean_of_rows(grad) - along) * inverse_deviation
    return np.asarray(grad_input, input.dtype), grad_weight, grad_bias


def sum_with_residual(input, residual):
    """Return input + residual in the working dtype; residual may be None."""
    return widen(input) if residual is None else widen(input) + widen(residual)


def normalise(x, eps, *, centred):
    """Return (x divided by the rows' deviation, 1 / deviation); deviations from the mean if `centred`, else from 0.

    Rows whose squares would overflow are scaled down first, by a power of 2: the result does not depend on scale.
    """
    limits, two = np.finfo(x.dtype), x.dtype.type(2)
    is_large = np.abs(x).max(axis=-1, keepdims=True, initial=0) > two ** (limits.maxexp // 2 - 10)
    shrink = np.where(is_large, two ** -(5 * limits.maxexp // 8), x.dtype.type(1))
    x = x * shrink
    if centred:
        x = x - mean_of_rows(x)
        x = x - mean_of_rows(x)  # removes the rounding error of the mean: equal numbers have no other deviation
    deviation = np.hypot(np.sqrt(mean_of_rows(x * x)), np.sqrt(eps).astype(x.dtype) * shrink)
    inverse_deviation = 1 / np.maximum(deviation, limits.tiny * (eps > 0))  # for equal numbers: 0 * 1e37, not 0 * inf
    return x * inverse_deviation, inverse_deviation * shrink


def mean_of_rows(x):
    """Return the mean over the last axis, (..., 1); NaN for rows without entries."""
    return x.sum(axis=-1, keepdims=True) / x.shape[-1]
