"""A scale and a shift for each column, with x = input + residual.

output     = x * weight + bias
grad_input = grad_output * weight, also the residual's gradient
grad_weight, grad_bias = the sums over the rows of grad_output * x, and of grad_output
"""

import numpy as np

from ..arrays import ieee_arithmetic, sum_rows, widen
from ..layer_norm.reference import sum_with_residual


@ieee_arithmetic
def affine(input, weight, bias, residual):
    """Return (input + residual) * weight + bias of (..., width); residual may be None."""
    return np.asarray(sum_with_residual(input, residual) * widen(weight) + widen(bias), input.dtype)


@ieee_arithmetic
def affine_backward(grad_output, input, weight, bias, residual):
    """Return (grad_input, grad_weight, grad_bias)."""
    grad = widen(grad_output)
    grad_weight, grad_bias = sum_rows(grad * sum_with_residual(input, residual)), sum_rows(grad)
    grad_input = np.asarray(grad * widen(weight), input.dtype)
    return grad_input, grad_weight.astype(weight.dtype), grad_bias.astype(bias.dtype)
