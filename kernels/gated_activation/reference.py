"""Gated activation (Shazeer 2020, "GLU variants improve transformer", https://arxiv.org/abs/2002.05202).

With a row's two halves g, the gate, and v, and an activation a (activation/reference.py),

    output = a(g) v
    grad_g = grad a'(g) v
    grad_v = grad a(g)
"""

import numpy as np

from ..activation import reference as _activation
from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def gated_activation(input, activation, gate):
    """Return (..., width) from (..., 2 * width)."""
    g, v = _halves(widen(input), gate)
    return np.asarray(_activation.activation(g, activation, None) * v, input.dtype)


@ieee_arithmetic
def gated_activation_backward(grad_output, input, activation, gate):
    """Return the gradient of the (..., 2 * width) input."""
    (g, v), grad = _halves(widen(input), gate), widen(grad_output)
    grad_input = np.empty(input.shape, input.dtype)
    grad_g, grad_v = _halves(grad_input, gate)
    grad_g[...] = _activation.activation_backward(grad * v, g, activation, None)[0]
    grad_v[...] = grad * _activation.activation(g, activation, None)
    return grad_input


def _halves(array, gate):
    """Return views of the gate and of the value."""
    width = array.shape[-1] // 2
    first, second = array[..., :width], array[..., width:]
    return (first, second) if gate == "first" else (second, first)
