"""RMS norm on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import norms

KERNELS = _cuda.Module(__file__, "rms_norm.cu", norms.INSTANTIATIONS)


def rms_norm(input, weight, eps, residual):
    """RMS norm of (..., width); weight is (width,) or None, residual has the shape of input or is None."""
    return norms.launch(KERNELS, input, weight, None, eps, residual, False)


def rms_norm_backward(grad_output, input, weight, eps, residual):
    """(grad_input, grad_weight or None)."""
    return norms.launch_backward(KERNELS, grad_output, input, weight, None, eps, residual, False, input.dtype)[:2]
