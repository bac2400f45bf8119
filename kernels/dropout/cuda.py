"""Dropout on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.elements import dropout_arguments
from ..philox import BLOCK, COUNTERS

THREADS = 256
KERNELS = _cuda.Source(__file__, "dropout.cu", _cuda.instantiations("dropout"))


def dropout(input, p, seed, residual):
    """Return `input` with elements dropped, plus `residual`, which may be None."""
    output = _cuda.array_module(input).empty(input.shape, input.dtype)
    if output.size:
        args = *_cuda.contiguous(input, residual), output, np.int64(output.size), *dropout_arguments(p, seed)
        blocks = -(-output.size // BLOCK) * COUNTERS // THREADS + 1
        KERNELS.launch(_cuda.template("dropout", _cuda.c_type(input.dtype)), (blocks,), (THREADS,), args)
    return output


def dropout_backward(grad_output, p, seed):
    """Return the gradient of the dropout input from the gradient of its output."""
    return dropout(grad_output, p, seed, None)
