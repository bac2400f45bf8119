"""Clipping by the joint norm on CUDA; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.elements import THREADS, table_of

INSTANTIATIONS = *_cuda.instantiations("sum_squares"), "root_of_sum"
KERNELS = _cuda.Source(__file__, "clip_norm.cu", INSTANTIATIONS)


def clip_norm(arrays, max_norm):
    """Scale the arrays in place and return their norm before scaling; the host waits for it."""
    norm = float(joint_norm(arrays))
    if max_norm < norm < np.inf:
        for array in arrays:
            array *= array.dtype.type(max_norm / norm)
    return norm


def joint_norm(arrays):
    """Return the norm, a float64 array without axes: a sum for each chunk of each array, then their sum in order."""
    xp = _cuda.array_module(arrays[0])
    arrays = [xp.ascontiguousarray(_in_order_of_memory(array)) for array in arrays]
    table, norm = table_of([(array,) for array in arrays]), xp.empty((), np.float64)
    sums = xp.empty(table.chunks, np.float64)
    table.launch(KERNELS, _cuda.template("sum_squares", _cuda.c_type(arrays[0].dtype)), sums)
    KERNELS.launch("root_of_sum", (1,), (THREADS,), (sums, norm, np.int32(table.chunks)))
    return norm


def _in_order_of_memory(array):
    """Return the transpose unless the array is contiguous: a contiguous transpose needs no copy to sum squares."""
    return array if array.flags.c_contiguous else array.T
