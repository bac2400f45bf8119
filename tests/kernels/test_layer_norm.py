"""layer_norm and rms_norm of numbers that lose digits or overflow; conformance/ has the rest."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.layer_norm import reference
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

EPS = 1e-5
NORMS = pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])


def test_the_sum_with_the_residual_is_not_rounded():
    x, residual = np.array([2048, 2048], np.float16), np.array([0.5, -0.5], np.float16)  # float16 holds 2048 and 2050
    np.testing.assert_allclose(reference.layer_norm(x, None, None, EPS, residual), [1, -1], rtol=1e-3)


@NORMS
@pytest.mark.parametrize(
    "dtype, largest", [(np.float32, 3e38), pytest.param(np.float64, 1e308, marks=pytest.mark.slow)]
)
def test_rows_whose_squares_overflow(norm, cpu_backend, dtype, largest):
    x, options = normal(5, (3, 39), dtype), {"eps": 0, "weight": normal(6, (39,), dtype), "backend": cpu_backend}
    expected = getattr(kernels, norm)(x, **options)
    x[1] *= largest / np.abs(x[1]).max()
    assert_close(getattr(kernels, norm)(x, **options), expected, factor=3)
