"""Activations at the corner of relu, of infinity, NaN and of huge numbers, and the digits of gelu far into its tail;
conformance/ has the rest."""

import math

import numpy as np
import pytest

from bertcore.kernels.activation import ACTIVATIONS, reference
from tests.kernels import oracles


def test_every_name_has_an_oracle():
    assert set(ACTIVATIONS) == set(oracles.ACTIVATIONS) == set(reference.FUNCTIONS) == set(reference.DERIVATIVES)


def test_relu_at_zero():
    gradient, _ = reference.activation_backward(np.ones(2), np.array([0.0, -0.0]), "relu", None)
    np.testing.assert_array_equal(gradient, [0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_huge_values(name, dtype):
    x = np.array([np.nan, 1e30, -1e30, np.finfo(dtype).max, np.finfo(dtype).min], dtype)
    output = [np.nan, *(np.sign(x[1:]) if name == "tanh" else np.maximum(x[1:], 0))]
    np.testing.assert_array_equal(reference.activation(x, name, None), output)
    gradient, _ = reference.activation_backward(np.ones(5, dtype), x, name, None)
    at_nan = 1 if name == "relu" else np.nan  # as in PyTorch
    np.testing.assert_array_equal(gradient, [at_nan, 0, 0, 0, 0] if name == "tanh" else [at_nan, 1, 0, 1, 0])


def test_normal_cdf_is_exact_to_a_few_ulps_far_into_the_tail():
    x = np.concatenate([np.linspace(-37, 9, 40001), [0.0, -0.0, 1e-300, -1e-300]])
    expected = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x])
    # erfc's own argument is rounded once here, which its tail magnifies by x^2.
    np.testing.assert_array_less(np.abs(reference.normal_cdf(x) / expected - 1), 2**-52 * (4 + x * x))


def test_normal_cdf_at_the_ends():
    np.testing.assert_array_equal(reference.normal_cdf(np.array([-np.inf, -1e200, 1e200, np.inf])), [0, 0, 1, 1])
    assert np.isnan(reference.normal_cdf(np.array([np.nan]))).all()
