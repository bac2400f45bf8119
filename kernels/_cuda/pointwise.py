"""Launching elementwise kernels (pointwise.cuh)."""

import numpy as np

from ..activation_names import activation_code
from . import C_TYPES, array_module, c_type

THREADS, VECTORS, VECTOR_BYTES = 256, 2, 16  # as in pointwise.cuh
INSTANTIATIONS = tuple(f"pointwise<{c_name}>" for c_name in C_TYPES.values())


def launch(module, activation, input, bias=None):
    """The activation of that name of every element of input + bias; bias, along the last axis, may be None."""
    xp = array_module(input)
    output = xp.empty(input.shape, input.dtype)
    input = xp.ascontiguousarray(input)  # NumPy gives an array without axes one
    if output.size == 0:
        return output
    per_block = THREADS * VECTORS * VECTOR_BYTES // input.dtype.itemsize
    room = input.size + VECTOR_BYTES // input.dtype.itemsize - 1  # the first vector may begin before the array
    width = 1 if bias is None else bias.size
    bias = None if bias is None else xp.ascontiguousarray(bias)
    args = (input, bias, output, np.int64(input.size), np.uint32(width), np.int32(activation_code(activation)))
    module.launch(f"pointwise<{c_type(input.dtype)}>", (-(-room // per_block),), (THREADS,), args)
    return output
