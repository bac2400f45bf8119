"""Clipping by the joint norm on CUDA, by CuPy's own sums and products; the definition is in reference.py."""

import math

import numpy as np

from .. import _cuda


def clip_norm(arrays, max_norm):
    """Scale the arrays in place; the norm before, for which the host waits."""
    xp = _cuda.array_module(arrays[0])
    norm = math.sqrt(float(sum(xp.square(array.astype(np.float64)).sum() for array in arrays)))
    if max_norm < norm < np.inf:
        for array in arrays:
            array *= array.dtype.type(max_norm / norm)
    return norm
