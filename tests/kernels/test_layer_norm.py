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


@pytest.mark.parametrize("value", [3.5, 1e30, 3e38, -3e38])
@pytest.mark.parametrize("width", [1, 7, 17, 160])
def test_equal_numbers_give_the_bias(cpu_backend, width, value):
    bias = normal(1, (width,), np.float32)
    found = kernels.layer_norm(np.full((2, width), value, np.float32), None, bias, EPS, backend=cpu_backend)
    np.testing.assert_array_equal(found, np.tile(bias, (2, 1)))


@NORMS
@pytest.mark.parametrize(
    "dtype, largest", [(np.float32, 3e38), pytest.param(np.float64, 1e308, marks=pytest.mark.slow)]
)
def test_rows_whose_squares_overflow(norm, cpu_backend, dtype, largest):
    """The result does not depend on the scale of a row, nor do its neighbours."""
    x, options = normal(5, (3, 39), dtype), {"eps": 0, "weight": normal(6, (39,), dtype), "backend": cpu_backend}
    expected = getattr(kernels, norm)(x, **options)
    x[1] *= largest / np.abs(x[1]).max()
    assert_close(getattr(kernels, norm)(x, **options), expected, factor=3)
