"""Layer normalisation of dropout(input) + residual.

    output = layer_norm(dropout(input, p, seed) + residual)

The definitions are those of dropout/reference.py and layer_norm/reference.py; in between, nothing is rounded. The
gradient of the sum is that of the residual; the gradient of the input is its dropout.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen
from ..dropout import reference as dropout_reference
from ..layer_norm import reference as layer_norm_reference


@ieee_arithmetic
def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """Return (..., width); weight and bias are (width,) or None."""
    total = dropout_reference.dropout(widen(input), p, seed, widen(residual))
    output = layer_norm_reference.layer_norm(total, _widened(weight), _widened(bias), eps, None)
    return np.asarray(output, input.dtype)


@ieee_arithmetic
def dropout_layer_norm_backward(grad_output, input, residual, weight, bias, eps, p, seed, dtype):
    """Return (grad_input, grad_residual, grad_weight or None, grad_bias or None), the last two in `dtype`."""
    total = dropout_reference.dropout(widen(input), p, seed, widen(residual))
    parameters = _widened(weight), _widened(bias)
    grads = layer_norm_reference.layer_norm_backward(widen(grad_output), total, *parameters, eps, None, dtype)
    grad_residual, *of_parameters = grads
    grad_input = dropout_reference.dropout_backward(grad_residual, p, seed)
    return np.asarray(grad_input, input.dtype), np.asarray(grad_residual, input.dtype), *of_parameters


def _widened(array):
    return None if array is None else widen(array)
