"""GELU on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import pointwise as _pointwise

FUNCTORS = {"none": "GeluErf", "tanh": "GeluTanh"}
KERNELS = _cuda.Module(__file__, "gelu.cu", _pointwise.instantiations(FUNCTORS.values()))


def gelu(input, approximate, bias):
    """GELU of input + bias; bias runs over the last axis or is None."""
    return _pointwise.launch(KERNELS, FUNCTORS[approximate], input, bias)
