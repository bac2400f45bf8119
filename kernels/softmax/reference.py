"""Softmax along one axis.

    output_i = exp(x_i) / sum_j exp(x_j)

computed as exp(x_i - max x) / sum_j exp(x_j - max x), which cannot overflow. The gradient, with y the output and g the
gradient of y, is y * (g - sum_j g_j y_j).

A slice that is -inf throughout (every key of a query masked) gives zeros. Elsewhere -inf gives 0 exactly; NaN or +inf
anywhere in a slice makes the whole slice NaN, as the definition does.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def softmax(input, dim):
    """Return the softmax of `input` along axis `dim`."""
    x = widen(input)
    peak = x.max(axis=dim, keepdims=True, initial=-np.inf)
    exponentials = np.exp(x - np.where(peak == -np.inf, 0, peak))
    total = exponentials.sum(axis=dim, keepdims=True)
    return np.asarray(exponentials / np.where(total == 0, 1, total), input.dtype)


@ieee_arithmetic
def softmax_backward(grad_output, output, dim):
    """Return the gradient of the softmax input from the gradient of its output and the output itself."""
    grad, y = widen(grad_output), widen(output)
    return np.asarray(y * (grad - (grad * y).sum(axis=dim, keepdims=True)), output.dtype)
