"""softmax/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore.kernels.softmax import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, shapes
from tests.tolerances import assert_close

SHAPES_AND_DIMS = [((5, 7), 1), ((5, 7), 0), ((2, 3, 39), 1), ((160,), 0), ((3, 1), 1), ((0, 4), 1), ((4, 0), 1)]


@pytest.mark.parametrize("shape, dim", SHAPES_AND_DIMS)
def test_oracle(shape, dim):
    x = normal(1, shape, scale=5)
    x[x < -6] = -np.inf
    assert_close(reference.softmax(x, dim), oracles.softmax(x, dim))


@QUICK
@given(shape=shapes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(shape, dtype, layout, seed):
    x = normal(seed, shape, dtype, layout, scale=3)
    exact = reference.softmax(x.astype(np.float64), 0)
    found = reference.softmax(x, 0)
    assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
    assert_close(found, exact)
    grad = normal(seed + 1, shape, dtype, layout)
    exact_grad = reference.softmax_backward(grad.astype(np.float64), found.astype(np.float64), 0)
    assert_close(reference.softmax_backward(grad, found, 0), exact_grad, at_least=1)  # cancels for one-entry lines


@pytest.mark.parametrize("shape, dim", SHAPES_AND_DIMS)
def test_finite_differences(shape, dim):
    x, grad = normal(2, shape), normal(3, shape)
    gradient = reference.softmax_backward(grad, reference.softmax(x, dim), dim)
    assert_gradient(lambda x: reference.softmax(x, dim), x, grad, gradient)


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


@pytest.mark.parity
@pytest.mark.parametrize("shape, dim", SHAPES_AND_DIMS)
def test_torch(shape, dim):
    x, grad = normal(4, shape, scale=4), normal(5, shape)
    output, grad_input = torch_gradients(lambda x: x.softmax(dim), grad, x)
    assert_close(reference.softmax(x, dim), output)
    assert_close(reference.softmax_backward(grad, output, dim), grad_input, at_least=1)
