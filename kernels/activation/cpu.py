"""Activation functions by name on the CPU: the elementwise kernels of _numba/pointwise.py."""

from .._numba import pointwise


def activation(input, activation):
    """The function named `activation` of every element of `input`."""
    return pointwise.activate(input, activation, None)


def activation_backward(grad_output, input, activation):
    """grad_output times the derivative at `input`; relu's derivative at 0 is 0."""
    return pointwise.activate_backward(grad_output, input, activation, None)[0]
