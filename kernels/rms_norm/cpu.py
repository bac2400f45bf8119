"""RMS norm on the CPU: the kernels of _numba/norms.py with a mean of 0."""

from .._numba.norms import normalise, normalise_backward


def rms_norm(input, weight, eps, residual):
    """Return the RMS norm of (..., width); weight is (width,) or None, residual has the shape of input or is None."""
    return normalise(input, weight, None, eps, residual, False)


def rms_norm_backward(grad_output, input, weight, eps, residual):
    """Return (grad_input, grad_weight or None); the mean square is computed again from the input."""
    grad_input, grad_weight, _ = normalise_backward(grad_output, input, weight, eps, residual, False)
    return grad_input, None if weight is None else grad_weight
