"""RMS norm on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import rows

KERNELS = _cuda.Source(__file__, "rms_norm.cu", rows.NORMS)


def rms_norm(input, weight, eps, residual):
    """Return the RMS norm of (..., width); weight (width,) and residual, of input's shape, may be None."""
    return rows.norm(KERNELS, input, weight, None, eps, residual, False)


def rms_norm_backward(grad_output, input, weight, eps, residual):
    """Return (grad_input, grad_weight or None)."""
    return rows.norm_backward(KERNELS, grad_output, input, weight, None, eps, residual, False, input.dtype)[:2]
