"""Launching elementwise kernels (pointwise.cuh)."""

import numpy as np

from . import C_TYPES, array_module, c_type

THREADS, VECTORS, VECTOR_BYTES = 256, 2, 16  # as in pointwise.cuh


def instantiations(functors):
    """Name expressions of pointwise<T, Functor> for all dtypes."""
    return tuple(f"pointwise<{c_name}, {functor}>" for c_name in C_TYPES.values() for functor in functors)


def launch(module, functor, input, bias=None):
    """functor(input + bias) of every element; bias, along the last axis, may be None."""
    xp = array_module(input)
    output = xp.empty(input.shape, input.dtype)
    input = xp.ascontiguousarray(input)  # NumPy gives an array without axes one
    if output.size == 0:
        return output
    per_block = THREADS * VECTORS * VECTOR_BYTES // input.dtype.itemsize
    room = input.size + VECTOR_BYTES // input.dtype.itemsize - 1  # the first vector may begin before the array
    width = 1 if bias is None else bias.size
    bias = None if bias is None else xp.ascontiguousarray(bias)
    kernel = f"pointwise<{c_type(input.dtype)}, {functor}>"
    args = (input, bias, output, np.int64(input.size), np.uint32(width))
    module.launch(kernel, (-(-room // per_block),), (THREADS,), args)
    return output
