"""Layer norm on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

from .. import _cuda
from .._cuda import norms

KERNELS = _cuda.Module(__file__, "layer_norm.cu", norms.INSTANTIATIONS)


def layer_norm(input, weight, bias, eps, residual):
    """Layer norm of (..., width); weight and bias are (width,) or None, residual has the shape of input or is None."""
    return norms.launch(KERNELS, input, weight, bias, eps, residual, True)


def layer_norm_backward(grad_output, input, weight, bias, eps, residual, dtype):
    """(grad_input, grad_weight or None, grad_bias or None), the last two in `dtype`."""
    return norms.launch_backward(KERNELS, grad_output, input, weight, bias, eps, residual, True, dtype)
