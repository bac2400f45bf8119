"""Dropout, residual and layer norm on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

Two launches, of the operations that it is made of. With a residual of its own, layer norm does not round the sum.
"""

from ..dropout import cuda as dropout_cuda
from ..layer_norm import cuda as layer_norm_cuda


def dropout_layer_norm(input, residual, weight, bias, eps, p, seed):
    """(..., width); weight and bias are (width,) or None."""
    dropped = dropout_cuda.dropout(input, p, seed, None)
    return layer_norm_cuda.layer_norm(dropped, weight, bias, eps, residual)
