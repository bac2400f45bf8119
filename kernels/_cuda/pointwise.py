"""Launching elementwise kernels (pointwise.cuh)."""

import numpy as np

from ..activation_names import activation_code
from . import C_TYPES, FLAGS, array_module, c_type, is_whole

THREADS, VECTORS, VECTOR_BYTES = 256, 2, 16  # as in pointwise.cuh
INSTANTIATIONS = tuple(f"pointwise<{c_name}, {flag}>" for c_name in C_TYPES.values() for flag in FLAGS)


def launch(module, activation, input, bias=None):
    """The activation of that name of every element of input + bias; bias, along the last axis, may be None."""
    xp = array_module(input)
    output = xp.empty(input.shape, input.dtype)
    input = xp.ascontiguousarray(input)  # NumPy gives an array without axes one
    if output.size == 0:
        return output
    width = 1 if bias is None else bias.size
    bias = None if bias is None else xp.ascontiguousarray(bias)
    args = (input, bias, output, np.int64(input.size), np.uint32(width), np.int32(activation_code(activation)))
    kernel = f"pointwise<{c_type(input.dtype)}, {FLAGS[is_whole(input.size, input, output)]}>"
    module.launch(kernel, (blocks(input, VECTORS),), (THREADS,), args)
    return output


def blocks(input, vectors):
    """As many as there are for the elements of `input`, `vectors` of 16 bytes to a thread."""
    per_vector = VECTOR_BYTES // input.dtype.itemsize
    room = input.size + per_vector - 1  # the first vector may begin before the array
    return -(-room // (THREADS * vectors * per_vector))
