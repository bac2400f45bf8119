"""The factors of one step of Adam's family."""

import functools
from typing import NamedTuple

import numpy as np


class Numbers(NamedTuple):
    """The factors of a step, in the dtype of the arrays.

    g = grad_scale grad, m = keep1 m + take1 g, v = keep2 v + take2 g^2; m' = scale1 m, sqrt(v') = scale2 sqrt(v).
    """

    lr: np.floating
    keep1: np.floating
    take1: np.floating
    keep2: np.floating
    take2: np.floating
    scale1: np.floating
    scale2: np.floating
    eps: np.floating
    weight_decay: np.floating
    grad_scale: np.floating

    @classmethod
    def at_step(cls, dtype, lr, betas, eps, weight_decay, step, grad_scale=1.0):
        """Return the numbers of one step."""
        scales = 1 / (1 - betas[0] ** step), (1 - betas[1] ** step) ** -0.5
        moments = betas[0], 1 - betas[0], betas[1], 1 - betas[1]
        return cls(*map(dtype.type, (lr, *moments, *scales, eps, weight_decay, grad_scale)))


BLOCK_8BIT = 256  # elements that share a scale


@functools.cache
def levels(is_signed):
    """Return the magnitudes of the codes of 8 bits relative to the largest of a block, ascending, in float32.

    They are 0 and those of a dynamic tree (Dettmers et al. 2022, arXiv:2110.02861, section 1.3): each power of ten down
    to 10^-6, or 10^-7 without a sign, ends a row of evenly spaced magnitudes, half as many as in the row above it.
    """
    bits = 7 if is_signed else 8
    rows = [10.0**-row * (0.1 + 0.9 * np.linspace(0, 1, (1 << (bits - 1 - row)) + 1)[1:]) for row in range(bits)]
    return np.concatenate([[0.0], *reversed(rows)]).astype(np.float32)


def midpoints(is_signed):
    """Return the numbers halfway between neighbouring levels."""
    found = levels(is_signed)
    return (found[1:] + found[:-1]) / np.float32(2)
