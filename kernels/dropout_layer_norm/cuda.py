"""Dropout, residual and layer norm on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

Launches of the operations that it is made of. With a residual of its own, layer norm does not round the sum.
"""

from ..dropout import cuda as dropout_cuda
from ..layer_norm import cuda as layer_norm_cuda


def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """(..., width); weight and bias are (width,) or None."""
    dropped = dropout_cuda.dropout(input, p, seed, None)
    return layer_norm_cuda.layer_norm(dropped, weight, bias, eps, residual)


def dropout_layer_norm_backward(grad_output, input, residual, weight, bias, eps, p, seed):
    """(grad_input, grad_residual, grad_weight or None, grad_bias or None); what was dropped is computed again."""
    dropped = dropout_cuda.dropout(input, p, seed, None)
    grad_sum, *of_parameters = layer_norm_cuda.layer_norm_backward(grad_output, dropped, weight, bias, eps, residual)
    return dropout_cuda.dropout_backward(grad_sum, p, seed), grad_sum, *of_parameters
