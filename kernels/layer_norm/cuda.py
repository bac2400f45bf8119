"""Layer norm on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import rows

KERNELS = _cuda.Source(__file__, "layer_norm.cu", rows.NORMS)


def layer_norm(input, weight, bias, eps, residual):
    """Return the layer norm of (..., width); weight, bias (width,) and residual, of input's shape, may be None."""
    return rows.norm(KERNELS, input, weight, bias, eps, residual, True)


def layer_norm_backward(grad_output, input, weight, bias, eps, residual, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None), the last two in `dtype`."""
    return rows.norm_backward(KERNELS, grad_output, input, weight, bias, eps, residual, True, dtype)
