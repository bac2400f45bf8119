"""GELU on the CPU: the elementwise kernels of _numba/pointwise.py."""

from .._numba import pointwise
from .reference import NAMES


def gelu(input, approximate, bias):
    """GELU of input + bias; bias runs over the last axis or is None."""
    return pointwise.activate(input, NAMES[approximate], bias)


def gelu_backward(grad_output, input, approximate, bias):
    """(grad_input, grad_bias or None)."""
    return pointwise.activate_backward(grad_output, input, NAMES[approximate], bias)
