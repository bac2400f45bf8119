"""Clipping by the joint norm: norm = sqrt(sum of x^2); x *= max_norm / norm if max_norm < norm < inf."""

import numpy as np

from ..arrays import ieee_arithmetic


def clip_norm(arrays, max_norm):
    """Scale the arrays in place and return their norm before scaling."""
    norm = float(joint_norm(arrays))
    if max_norm < norm < np.inf:
        for array in arrays:
            array *= array.dtype.type(max_norm / norm)
    return norm


@ieee_arithmetic
def joint_norm(arrays):
    """Return the norm, a float64 array without axes."""
    return np.asarray(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays)))
