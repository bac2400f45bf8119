"""Activation functions on CUDA: float32, float16, bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import pointwise

KERNELS = _cuda.Module(__file__, "activation.cu", pointwise.INSTANTIATIONS)


def activation(input, activation, bias):
    """The function named `activation` of input + bias; bias runs over the last axis or is None."""
    return pointwise.launch(KERNELS, activation, input, bias)
