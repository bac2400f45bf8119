"""softmax of what is hidden, infinite or huge; conformance/ has the rest."""

import numpy as np
import pytest

from bertcore.kernels.softmax import reference


def test_rows_of_minus_infinity_are_zeros():
    x = np.array([[-np.inf, -np.inf], [0, -np.inf]])
    output = reference.softmax(x, 1)
    np.testing.assert_array_equal(output, [[0, 0], [1, 0]])
    np.testing.assert_array_equal(reference.softmax_backward(np.ones((2, 2)), output, 1), np.zeros((2, 2)))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_spoil_their_line_alone(poison):
    output = reference.softmax(np.array([[0.0, poison, -np.inf], [1, 1, 1]]), 1)
    assert np.isnan(output[0]).all()
    np.testing.assert_allclose(output[1], 1 / 3)


def test_huge_values_do_not_overflow():
    x = np.array([3e38, 3e38, -3e38], np.float32)
    np.testing.assert_array_equal(reference.softmax(x, 0), np.array([0.5, 0.5, 0], np.float32))
