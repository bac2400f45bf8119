"""Pooling on CUDA: float32, float16 and bfloat16, in float32; the definition is in reference.py.

The offsets stay on the GPU, so that the host does not wait: they are not checked, but clamped to the number of tokens.
"""

import numpy as np

from .. import _cuda
from . import MODES

LANES, ROWS, VECTOR_BYTES = 32, 8, 16  # as in pooling.cu
NAMES = ("pool_sums", "pool_sums_backward", "pool_peaks", "pool_peaks_backward")
KERNELS = _cuda.Source(__file__, "pooling.cu", [it for name in NAMES for it in _cuda.instantiations(name)])


def pooling(input, cu_seqlens, mode, skipped, dtype):
    """Return (sequences, width) of `dtype`, computed in float32, from (tokens, width) and (sequences + 1,) offsets."""
    output = _cuda.array_module(input).empty((len(cu_seqlens) - 1, input.shape[1]), np.float32)
    _launch("", input, (input,), cu_seqlens, output, mode, skipped)
    return output.astype(dtype, copy=False)


def pooling_backward(grad_output, input, cu_seqlens, mode, skipped):
    """Return the gradient of (tokens, width) from that of (sequences, width)."""
    grad_input = _cuda.array_module(input).zeros(input.shape, input.dtype)
    grad = grad_output.astype(np.float32, copy=False)
    _launch("_backward", input, (grad, input) if mode == "max" else (grad,), cu_seqlens, grad_input, mode, skipped)
    return grad_input


def _launch(direction, input, sources, cu_seqlens, target, mode, skipped):
    """Launch a kernel that reads the `sources`, arrays of any strides, and writes `target`."""
    sequences, (tokens, width) = len(cu_seqlens) - 1, input.shape
    if not sequences or not width:
        return
    columns = LANES * VECTOR_BYTES // input.itemsize
    kernel, codes = ("pool_peaks", ()) if mode == "max" else ("pool_sums", (np.int32(MODES.index(mode)),))
    arrays = *_cuda.contiguous(*sources, cu_seqlens), target
    args = *arrays, np.int32(tokens), np.int32(width), *codes, np.int32(min(skipped, tokens))
    name = _cuda.template(kernel + direction, _cuda.c_type(input.dtype))
    KERNELS.launch(name, (sequences, -(-width // columns)), (LANES, ROWS), args)
