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

from ..precision import sum_rows, widen


@np.errstate(invalid="ignore", over="ignore")
def layer_norm(input, weight, bias, eps, residual):
    """Layer norm of (..., width); weight and bias are (width,) or None, residual has the shape of input or is None."""
    output, _ = _normalise(input, eps, residual)
    if weight is not None:
        output = output * widen(weight)
    if bias is not None:
        output = output + widen(bias)
    return np.asarray(output, input.dtype)


@np.errstate(invalid="ignore", over="ignore")
def layer_norm_backward(grad_output, input, weight, eps, residual):
    """(grad_input, grad_weight or None, grad_bias); mean and variance are computed again from the input."""
    normalised, inverse_deviation = _normalise(input, eps, residual)
    grad = widen(grad_output)
    grad_weight = None if weight is None else sum_rows(grad * normalised).astype(weight.dtype)
    grad_bias = sum_rows(grad).astype(input.dtype)
    if weight is not None:
        grad = grad * widen(weight)
    along = normalised * _mean(grad * normalised)
    grad_input = (grad - _mean(grad) - along) * inverse_deviation
    return np.asarray(grad_input, input.dtype), grad_weight, grad_bias


def _normalise(input, eps, residual):
    x = widen(input)
    if residual is not None:
        x = x + widen(residual)
    deviation = x - _mean(x)
    inverse_deviation = 1 / np.sqrt(_mean(deviation * deviation) + x.dtype.type(eps))
    return deviation * inverse_deviation, inverse_deviation


def _mean(x):  # NaN for rows without entries, which no entry then receives
    return x.sum(axis=-1, keepdims=True) / x.shape[-1]
