"""Activation functions on the CPU: the elementwise kernels of _numba/pointwise.py."""

from .._numba import pointwise


def activation(input, activation, bias):
    """Apply the function named `activation` to input + bias; bias is along the last axis or None."""
    return pointwise.activate(input, activation, bias)


def activation_backward(grad_output, input, activation, bias):
    """Return (grad_input, grad_bias or None); relu's derivative is 0 at 0 and 1 at NaN."""
    return pointwise.activate_backward(grad_output, input, activation, bias)
