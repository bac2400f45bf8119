"""Activation functions on the CPU: the elementwise kernels of _numba/pointwise.py."""

from .._numba import pointwise


def activation(input, activation, bias):
    """Return the function named `activation` of input + bias; bias runs over the last axis or is None."""
    return pointwise.activate(input, activation, bias)


def activation_backward(grad_output, input, activation, bias):
    """Return (grad_input, grad_bias or None); relu's derivative is 0 at 0 and 1 at NaN."""
    return pointwise.activate_backward(grad_output, input, activation, bias)
