"""Dropout on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.dropping import dropping
from ..philox import BLOCK, COUNTERS

THREADS = 256
KERNELS = _cuda.Module(__file__, "dropout.cu", tuple(f"dropout<{c_name}>" for c_name in _cuda.C_TYPES.values()))


def dropout(input, p, seed, residual):
    """`input` with elements dropped, plus `residual`."""
    xp = _cuda.array_module(input)
    input, output = xp.ascontiguousarray(input), xp.empty(input.shape, input.dtype)
    if output.size:
        residual = None if residual is None else xp.ascontiguousarray(residual)
        args = input, residual, output, np.int64(output.size), *dropping(p, seed)
        blocks = -(-output.size // BLOCK) * COUNTERS // THREADS + 1
        name = f"dropout<{_cuda.c_type(input.dtype)}>"
        KERNELS.launch(name, (blocks,), (THREADS,), args)
    return output


def dropout_backward(grad_output, p, seed):
    """Gradient of the dropout input from the gradient of its output."""
    return dropout(grad_output, p, seed, None)
