"""Hypothesis strategies and builders for awkward arrays: sizes, dtypes, memory layouts."""

import ml_dtypes
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

# Derandomised: a run that fails, fails again.
QUICK = settings(max_examples=40, deadline=None, derandomize=True)

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# Nothing, one, primes beside powers of two, one short of a multiple of 8, and more than one block of a kernel.
SIZES = (0, 1, 2, 3, 7, 8, 17, 39, 160)

LAYOUTS = ("contiguous", "fortran", "every_second", "reversed", "slice", "read_only")


def sizes():
    return st.sampled_from(SIZES)


def dtypes():
    return st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


def layouts():
    return st.sampled_from(LAYOUTS)


def shapes(min_dims=1, max_dims=3):
    """Shapes of up to a few thousand elements."""
    lists = st.lists(sizes(), min_size=min_dims, max_size=max_dims)
    return lists.map(tuple).filter(lambda shape: np.prod(shape) < 20000)


def seeds():
    return st.integers(0, 2**16)


def normal(seed, shape, dtype=np.float64, layout="contiguous", scale=1.0):
    """Normally distributed values, the same for every layout."""
    values = np.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype)
    return with_layout(values, layout)


def with_layout(array, layout):
    """An array equal to `array` whose memory is laid out as `layout` says."""
    if layout == "fortran":
        return np.array(array, order="F")
    if layout == "every_second" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        everywhere = (..., *[slice(None, None, -1)] * array.ndim)
        return np.array(array[everywhere], order="C")[everywhere]
    if layout == "slice":
        return np.pad(array, 3)[(..., *[slice(3, -3)] * array.ndim)]
    result = np.array(array, order="C")
    result.flags.writeable = layout != "read_only"
    return result
