"""One step of Adam's family, in place; formulas and sources are in the contract (__init__.py)."""

import functools
from typing import NamedTuple

import numpy as np

from ..arrays import ieee_arithmetic


def adam_update(sets, lr, betas, eps, weight_decay, step, rule, grad_scale):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first and second moment) of each."""
    if grad_scale is not None and not np.isfinite(grad_scale):
        return
    for parameter, grad, *moments in sets:
        grad = grad if grad_scale is None else grad * grad_scale
        _update(parameter, grad, *moments, lr, betas, eps, weight_decay, step, rule)


@ieee_arithmetic
def _update(parameter, grad, first_moment, second_moment, lr, betas, eps, weight_decay, step, rule):
    first_moment[...] = betas[0] * first_moment + (1 - betas[0]) * grad
    second_moment[...] = betas[1] * second_moment + (1 - betas[1]) * (grad * grad)  # inf stays inf: no inf - inf
    first, second = first_moment / (1 - betas[0] ** step), second_moment / (1 - betas[1] ** step)
    update = first / (np.sqrt(second) + eps) + weight_decay * parameter
    if rule == "stable_adamw" and grad.size:
        lr = lr / max(1.0, np.sqrt(np.mean(surprise(grad, second, eps), dtype=np.float64)))
    if rule == "lamb":
        norms = [np.sqrt(np.sum(array.astype(np.float64) ** 2)) for array in (parameter, update)]
        lr = lr * norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else lr
    parameter -= np.asarray(lr * update, parameter.dtype)


def surprise(grad, second, eps):
    """Return g^2 / max(v', eps^2); 0 where both are 0."""
    root = np.maximum(np.sqrt(second), eps)
    ratio = np.divide(grad, root, out=np.zeros_like(grad), where=root != 0)
    return ratio * ratio


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


def quantize_moment(values, codes, scales, is_signed):
    """Round blocks of a flat float32 array to codes of 8 bits, the nearest `levels` times the largest magnitude.

    A sign is the code's highest bit. Without a sign, numbers above 0 stay above 0, because they are divisors.
    """
    blocks = np.zeros(len(scales) * BLOCK_8BIT, np.float32)
    blocks[: values.size] = values
    sizes = np.abs(blocks).reshape(-1, BLOCK_8BIT)
    scales[...] = sizes.max(axis=1)
    shares = sizes / np.where(scales > 0, scales, np.float32(1))[:, None]
    found = np.searchsorted(midpoints(is_signed), shares)
    if is_signed:
        found[(found > 0) & (blocks.reshape(found.shape) < 0)] |= 128
    else:
        found = np.maximum(found, shares > 0)
    codes[...] = found.reshape(-1)[: values.size]


def dequantize_moment(codes, scales, values, is_signed):
    """Write the numbers of the codes to a flat float32 array."""
    known = levels(is_signed)
    known = np.concatenate([known, -known]) if is_signed else known
    values[...] = known[codes] * np.repeat(scales, BLOCK_8BIT)[: codes.size]


class Numbers(NamedTuple):
    """The factors of a step as the other backends take them, in the dtype of the arrays.

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
