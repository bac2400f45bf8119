"""Elementwise activation functions by name.

    relu       max(x, 0)
    tanh       tanh(x)
    silu       x / (1 + exp(-x))                                          (Elfwing et al. 2017, arXiv:1702.03118)
    gelu       the exact form, gelu_tanh its tanh approximation           (see gelu/reference.py)

At +-inf the formulas are followed in IEEE arithmetic: silu(-inf) = NaN, as in PyTorch.
"""

import numpy as np

from ..gelu import reference as _gelu
from ..precision import ieee_arithmetic, widen


def _relu(x):
    return np.maximum(x, 0)


def _relu_derivative(x):
    return np.where(np.isnan(x), x, x > 0)


def _tanh_derivative(x):
    return 1 - np.tanh(x) ** 2


def _silu(x):
    return x / (1 + np.exp(-x))


def _silu_derivative(x):
    sigmoid = 1 / (1 + np.exp(-x))
    return sigmoid * (1 + x * (1 - sigmoid))


FUNCTIONS = {"relu": _relu, "tanh": np.tanh, "silu": _silu}
DERIVATIVES = {"relu": _relu_derivative, "tanh": _tanh_derivative, "silu": _silu_derivative}
GELU_FORMS = {name: form for form, name in _gelu.NAMES.items()}


@ieee_arithmetic
def activation(input, activation):
    """The function named `activation` of every element of `input`."""
    if activation in GELU_FORMS:
        return _gelu.gelu(input, GELU_FORMS[activation], None)
    return np.asarray(FUNCTIONS[activation](widen(input)), input.dtype)


@ieee_arithmetic
def activation_backward(grad_output, input, activation):
    """grad_output times the derivative at `input`; relu's derivative at 0 is 0."""
    if activation in GELU_FORMS:
        return _gelu.gelu_backward(grad_output, input, GELU_FORMS[activation], None)[0]
    grad = widen(grad_output) * DERIVATIVES[activation](widen(input))
    return np.asarray(grad, input.dtype)
