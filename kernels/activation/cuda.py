"""Activation functions on CUDA: float32, float16, bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import pointwise as _pointwise
from ..gelu import cuda as _gelu
from .reference import GELU_FORMS

FUNCTORS = {"relu": "Relu", "tanh": "Tanh", "silu": "Silu"}
KERNELS = _cuda.Module(__file__, "activation.cu", _pointwise.instantiations(FUNCTORS.values()))


def activation(input, activation):
    """The function named `activation` of every element of `input`."""
    if activation in GELU_FORMS:
        return _gelu.gelu(input, GELU_FORMS[activation], None)
    return _pointwise.launch(KERNELS, FUNCTORS[activation], input)
