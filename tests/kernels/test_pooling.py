"""Pooling: what conformance/ does not ask of it."""

from itertools import pairwise

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.pooling import MODES
from bertcore.kernels.pooling import cuda as pooling_cuda
from tests.kernels.strategies import normal

OFFSETS = np.array([0, 3, 44, 44, 205], np.int32)


@pytest.mark.parametrize("mode", MODES)
def test_neighbours_change_no_bit(cuda, mode):
    rows = normal(1, (205, 264), np.float16)
    together = cuda.run(pooling_cuda.pooling, rows, OFFSETS, mode, 1, np.float32)
    assert cuda.launches is None or len(cuda.launches) == 1
    for text, (start, stop) in enumerate(pairwise(OFFSETS)):
        own = np.array([0, stop - start], np.int32)
        alone = cuda.run(pooling_cuda.pooling, rows[start:stop].copy(), own, mode, 1, np.float32)
        np.testing.assert_array_equal(together[text], alone[0])
        np.testing.assert_array_equal(
            kernels.pooling(rows, OFFSETS, mode, skipped=1, backend="numpy")[text],
            kernels.pooling(rows[start:stop], own, mode, skipped=1, backend="numpy")[0],
        )


@pytest.mark.parametrize("mode", MODES)
def test_offsets_that_nobody_checked_reach_nothing_outside(cuda, mode):
    rows = normal(1, (9, 39), np.float32)
    found = cuda.run(pooling_cuda.pooling, rows, np.array([-5, 9, 99, 3], np.int32), mode, 0, np.float32)
    expected = kernels.pooling(rows, np.array([0, 9, 9, 9]), mode, backend="numpy")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
