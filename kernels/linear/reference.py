"""Affine map with optional activation and residual.

    output = activation(input @ weight.T + bias) + residual

weight is (out_features, in_features), as checkpoints store it. The gradients, with g = grad_output times the derivative
of the activation at input @ weight.T + bias (which is computed again), are

    grad_input = g @ weight,    grad_weight = g.T @ input,    grad_bias = sum of g over the rows

and the residual's is grad_output itself.
"""

import numpy as np

from ..activation import reference as _activation
from ..precision import sum_rows, widen


class ReferenceWeight:
    """A weight of its own: a C-contiguous copy that later changes to the original array do not reach."""

    def __init__(self, weight):
        self._array = np.array(weight, order="C")
        self.out_features, self.in_features = self._array.shape
        self.dtype = self._array.dtype

    def to_array(self):
        """The weight as it was given, (out_features, in_features)."""
        return self._array.copy()


def prepare_weight(weight):
    """The prepared form of an (out_features, in_features) weight."""
    return ReferenceWeight(weight)


@np.errstate(invalid="ignore", over="ignore")
def linear(input, weight, bias, activation, residual):
    """(rows, in_features) to (rows, out_features); bias is (out_features,), residual (rows, out_features), or None."""
    output = _affine(widen(input), _widened(weight), bias)
    if activation is not None:
        output = _activation.activation(output, activation)
    if residual is not None:
        output = output + widen(residual)
    return np.asarray(output, input.dtype)


@np.errstate(invalid="ignore", over="ignore")
def linear_backward(grad_output, input, weight, bias, activation):
    """(grad_input, grad_weight, grad_bias or None)."""
    grad, x, w = widen(grad_output), widen(input), _widened(weight)
    if activation is not None:
        grad = _activation.activation_backward(grad, _affine(x, w, bias), activation)
    grad_bias = None if bias is None else sum_rows(grad).astype(bias.dtype)
    return np.asarray(grad @ w, input.dtype), np.asarray(grad.T @ x, input.dtype), grad_bias


def _affine(x, w, bias):
    return x @ w.T if bias is None else x @ w.T + widen(bias)


def _widened(weight):
    return widen(weight._array if isinstance(weight, ReferenceWeight) else weight)
