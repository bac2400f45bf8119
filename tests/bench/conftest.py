"""Fixtures of the benchmarks' tests."""

import pytest

from bench import machine
from bertcore.kernels import _numba


@pytest.fixture(autouse=True)
def same_threads_after():
    """A benchmark sets the number of threads of the whole process."""
    before = _numba.num_threads()
    yield
    _numba.set_num_threads(before)
    machine.set_threads(None)
