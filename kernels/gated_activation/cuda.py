"""Gated activation on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from ..activation_names import activation_code

THREADS, VECTOR_BYTES = 256, 16
KERNELS = _cuda.Module(
    __file__, "gated_activation.cu", tuple(f"gated_activation<{c_name}>" for c_name in _cuda.C_TYPES.values())
)


def gated_activation(input, activation, gate):
    """(..., 2 * width) to (..., width)."""
    xp = _cuda.array_module(input)
    input = xp.ascontiguousarray(input)
    width = input.shape[-1] // 2
    output = xp.empty((*input.shape[:-1], width), input.dtype)
    if output.size:
        rows, vectors = output.size // width, -(-width * input.dtype.itemsize // VECTOR_BYTES)
        sizes = np.int64(rows), np.int32(width), np.int32(activation_code(activation)), np.bool_(gate == "first")
        blocks = -(-rows * vectors // THREADS)
        KERNELS.launch(f"gated_activation<{_cuda.c_type(input.dtype)}>", (blocks,), (THREADS,), (input, output, *sizes))
    return output
