"""Hypothesis strategies for awkward arrays: sizes, dtypes, memory layouts."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.kernels.arrays import DTYPES, HOST_LAYOUTS, LAYOUTS, normal, with_layout  # noqa: F401
from tests.kernels.forced_isa import FORCED

QUICK = settings(max_examples=40)

# Those of Numba's kernels, which take a minute and a half to compile in float64. Runs for another CPU are slow anyway.
NUMBA_DTYPES = [np.float32, pytest.param(np.float64, marks=[] if FORCED else pytest.mark.slow)]

# Nothing, one, primes beside powers of two, one short of a multiple of 8, and more than one block of a kernel.
SIZES = (0, 1, 2, 3, 7, 8, 17, 39, 160)


def sizes():
    return st.sampled_from(SIZES)


def dtypes():
    return st.sampled_from(sorted(DTYPES)).map(DTYPES.get)


def layouts():
    return st.sampled_from(HOST_LAYOUTS)


def shapes(min_dims=1, max_dims=3):
    """Shapes of up to a few thousand elements."""
    lists = st.lists(sizes(), min_size=min_dims, max_size=max_dims)
    return lists.map(tuple).filter(lambda shape: np.prod(shape) < 20000)


def seeds():
    return st.integers(0, 2**16)
