"""One step of Muon, in place; formulas and sources are in the contract (__init__.py)."""

import numpy as np

from ..arrays import ieee_arithmetic
from ..clip_norm.reference import joint_norm

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # a, b and c of a step
STEPS = 5
EPS = 1e-7
RMS = 0.2  # of an update, as usual for AdamW


@ieee_arithmetic
def muon_update(sets, lr, beta, weight_decay, grad_scale):
    """Update matrices and their momenta in place; `sets` has (parameter, grad, momentum) of each."""
    if grad_scale is not None and not np.isfinite(grad_scale):
        return
    for parameter, grad, momentum in sets:
        part = (1 - beta) * (grad if grad_scale is None else grad * grad_scale)
        momentum *= beta
        momentum += part
        direction = orthogonalized(part + beta * momentum)
        parameter *= 1 - lr * weight_decay
        parameter -= rate_of(parameter.shape, lr) * direction


def orthogonalized(matrix):
    """Return a matrix with the singular vectors of `matrix` and singular values near 1."""
    if not matrix.size:
        return matrix
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    a, b, c = COEFFICIENTS
    x = matrix / np.maximum(joint_norm([matrix]), EPS).astype(matrix.dtype)
    for _ in range(STEPS):
        squares = x @ x.T
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x


def rate_of(shape, lr):
    """Return the factor of the orthogonalized matrix."""
    return lr * RMS * max(shape) ** 0.5
