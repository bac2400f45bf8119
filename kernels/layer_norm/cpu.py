"""Layer norm on the CPU: the kernels of _numba/norms.py."""

from .._numba.norms import normalise, normalise_backward


def layer_norm(input, weight, bias, eps, residual):
    """Return the layer norm of input + residual, (..., width); weight and bias are (width,) or None."""
    return normalise(input, weight, bias, eps, residual, True)


def layer_norm_backward(grad_output, input, weight, bias, eps, residual, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None); statistics are computed again."""
    grad_input, grad_weight, grad_bias = normalise_backward(grad_output, input, weight, eps, residual, True)
    return grad_input, None if weight is None else grad_weight, None if bias is None else grad_bias
