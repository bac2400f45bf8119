"""GELU on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import pointwise
from .reference import NAMES

KERNELS = _cuda.Module(__file__, "gelu.cu", pointwise.INSTANTIATIONS)


def gelu(input, approximate, bias):
    """GELU of input + bias; bias runs over the last axis or is None."""
    return pointwise.launch(KERNELS, NAMES[approximate], input, bias)
