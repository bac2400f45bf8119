"""The angles of rotary position embeddings, for texts of the trained length and for longer ones."""

import math

import numpy as np

from .. import checks
from ..precision import ieee_arithmetic

SCALINGS = (None, "linear", "ntk", "dynamic")


def rotary_tables(
    length: int,
    rotary_dim: int,
    theta: float = 10000.0,
    *,
    scaling: str | None = None,
    factor: float = 1.0,
    trained_length: int | None = None,
    dtype: np.dtype | type = np.float32,
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of the angles by which `rotary` rotates the pairs of the positions from 0 to length - 1.

    The angle of pair i at position p is p * theta^(-2 i / d), d = rotary_dim, in float64; only cos and sin are rounded.
    For texts longer than those trained on, `scaling` stretches the positions:

    - "linear": the angle is divided by factor (Chen et al. 2023, arXiv:2306.15595).
    - "ntk": theta is multiplied by factor, and the angle divided by factor^(2 / d).
    - "dynamic": theta is multiplied by (factor length / trained_length - factor + 1)^(d / (d - 2)) if `length`
      exceeds trained_length: `length` is that of the one text.

    The source of the last two is Peng et al. 2023, arXiv:2309.00071, section 3.

    Args:
        length: the number of positions.
        rotary_dim: how many elements of a head are rotated; even.
        theta: the base of the angles; positive.
        scaling: None, "linear", "ntk" or "dynamic".
        factor: at least 1.
        trained_length: the number of positions trained on; "dynamic" needs it.
        dtype: of the tables; floating.

    Returns:
        (cos, sin), each (length, rotary_dim / 2).

    Raises:
        TypeError, ValueError: for a number that is not as above, and for numbers that make the angles infinite.
    """
    length = checks.integer_number("length", length, minimum=0)
    rotary_dim = checks.integer_number("rotary_dim", rotary_dim, minimum=2)
    if rotary_dim % 2:
        raise ValueError(f"rotary_dim is {rotary_dim}, expected an even number")
    theta = checks.finite_number("theta", theta)
    if theta <= 0:
        raise ValueError(f"theta is {theta}, expected a positive number")
    checks.choice("scaling", scaling, SCALINGS)
    factor = checks.finite_number("factor", factor, minimum=1)
    divisor = 1.0
    if scaling == "linear":
        divisor = factor
    elif scaling == "ntk":
        theta, divisor = theta * factor, factor ** (2 / rotary_dim)
    elif scaling == "dynamic":
        theta *= _dynamic_stretch(length, rotary_dim, factor, trained_length)
    dtype = checks.floating_dtype("dtype", dtype)
    angles = _angles(length, rotary_dim, theta, divisor)
    if not (math.isfinite(theta) and np.isfinite(angles[-1:]).all()):
        raise ValueError(f"theta is {theta} with a factor of {factor}, expected numbers that keep the angles finite")
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


@ieee_arithmetic
def _angles(length: int, rotary_dim: int, theta: float, divisor: float) -> np.ndarray:
    """Return the angles, (length, rotary_dim / 2); inf or NaN if they overflow."""
    return np.arange(length)[:, None] * (theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim) / divisor)


def _dynamic_stretch(length: int, rotary_dim: int, factor: float, trained_length: int | None) -> float:
    trained_length = checks.integer_number("trained_length", trained_length, minimum=1)
    if rotary_dim == 2:  # its only pair does not depend on theta
        return 1.0
    stretch = np.float64(factor * max(length / trained_length, 1.0) - (factor - 1))
    with np.errstate(over="ignore"):  # inf, which the caller rejects
        return float(stretch ** (rotary_dim / (rotary_dim - 2)))
