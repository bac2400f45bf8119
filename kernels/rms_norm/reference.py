"""Root mean square normalisation over the last axis (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

With x = input + residual, and the mean taken over the last axis,

    normalised = x / sqrt(mean(x^2) + eps)
    output     = normalised * weight

For the gradient, with g the gradient of `normalised`,

    grad_input = (g - normalised * mean(g * normalised)) / sqrt(mean(x^2) + eps)

and the residual's gradient is the same.
"""

import numpy as np

from ..arrays import ieee_arithmetic, sum_rows, widen
from ..layer_norm.reference import mean_of_rows, normalise, sum_with_residual


@ieee_arithmetic
def rms_norm(input, weight, eps, residual):
    """Return the RMS norm of (..., width); weight is (width,) or None, residual has the shape of input or is None."""
    output, _ = normalise(sum_with_residual(input, residual), eps, centred=False)
    return np.asarray(output if weight is None else output * widen(weight), input.dtype)


@ieee_arithmetic
def rms_norm_backward(grad_output, input, weight, eps, residual):
    """Return (grad_input, grad_weight or None); the mean square is computed again from the input."""
    normalised, inverse_deviation = normalise(sum_with_residual(input, residual), eps, centred=False)
    grad = widen(grad_output)
    grad_weight = None if weight is None else sum_rows(grad * normalised).astype(weight.dtype)
    if weight is not None:
        grad = grad * widen(weight)
    grad_input = (grad - normalised * mean_of_rows(grad * normalised)) * inverse_deviation
    return np.asarray(grad_input, input.dtype), grad_weight
