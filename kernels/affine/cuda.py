"""Scale and shift on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda

THREADS, VECTOR_BYTES = 256, 16
KERNELS = _cuda.Module(__file__, "affine.cu", tuple(f"affine_rows<{c_name}>" for c_name in _cuda.C_TYPES.values()))


def affine(input, weight, bias, residual):
    """(input + residual) * weight + bias of (..., width); residual may be None."""
    xp = _cuda.array_module(input)
    input, weight, bias = xp.ascontiguousarray(input), xp.ascontiguousarray(weight), xp.ascontiguousarray(bias)
    residual = None if residual is None else xp.ascontiguousarray(residual)
    output = xp.empty(input.shape, input.dtype)
    if output.size:
        width = input.shape[-1]
        rows, vectors = output.size // width, -(-width * input.dtype.itemsize // VECTOR_BYTES)
        args = (input, residual, weight, bias, output, np.int64(rows), np.int32(width))
        blocks = -(-rows * vectors // THREADS)
        KERNELS.launch(f"affine_rows<{_cuda.c_type(input.dtype)}>", (blocks,), (THREADS,), args)
    return output
