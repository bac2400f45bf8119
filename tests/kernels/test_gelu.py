"""gelu/reference.py against math.erfc, finite differences, itself in float64, and PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given

from bertcore.kernels.gelu import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, shapes
from tests.tolerances import assert_close

FORMS = {"none": "gelu", "tanh": "gelu_tanh"}


def test_normal_cdf_is_exact_to_a_few_ulps_far_into_the_tail():
    x = np.concatenate([np.linspace(-37, 9, 40001), [0.0, -0.0, 1e-300, -1e-300]])
    expected = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x])
    # erfc's own argument is rounded once here, which its tail magnifies by x^2.
    np.testing.assert_array_less(np.abs(reference.normal_cdf(x) / expected - 1), 2**-52 * (4 + x * x))


def test_normal_cdf_at_the_ends():
    np.testing.assert_array_equal(reference.normal_cdf(np.array([-np.inf, -1e200, 1e200, np.inf])), [0, 0, 1, 1])
    assert np.isnan(reference.normal_cdf(np.array([np.nan]))).all()


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 39), (160,), (1, 1), (0, 4), (4, 0), (3, reference.BLOCK // 2 + 1)])
def test_oracle(shape, approximate):
    x, bias = normal(1, shape, scale=3), normal(2, shape[-1:])
    assert_close(reference.gelu(x, approximate, None), oracles.activation(x, FORMS[approximate]))
    assert_close(reference.gelu(x, approximate, bias), oracles.activation(x + bias, FORMS[approximate]))


@QUICK
@given(shape=shapes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(shape, dtype, layout, seed):
    x, grad = (normal(seed + i, shape, dtype, layout, scale=2) for i in range(2))
    bias = normal(seed + 2, shape[-1:], dtype, layout)
    wide_x, wide_grad, wide_bias = (array.astype(np.float64) for array in (x, grad, bias))
    for approximate in FORMS:
        found = reference.gelu(x, approximate, bias)
        assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
        assert_close(found, reference.gelu(wide_x, approximate, wide_bias))
        gradients = reference.gelu_backward(grad, x, approximate, bias)
        exact = reference.gelu_backward(wide_grad, wide_x, approximate, wide_bias)
        for name, one, other in zip(("grad_input", "grad_bias"), gradients, exact, strict=True):
            assert_close(one, other, name=name, at_least=1)


@pytest.mark.parametrize("approximate", FORMS)
def test_finite_differences(approximate):
    x, bias, grad = normal(3, (3, 7), scale=2), normal(4, (7,)), normal(5, (3, 7))
    grad_input, grad_bias = reference.gelu_backward(grad, x, approximate, bias)
    assert_gradient(lambda x: reference.gelu(x, approximate, bias), x, grad, grad_input)
    assert_gradient(lambda b: reference.gelu(x, approximate, b), bias, grad, grad_bias)
    assert reference.gelu_backward(grad, x, approximate, None)[1] is None


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_values(dtype, approximate):
    huge = np.array([1e30, -1e30, np.finfo(dtype).max, np.finfo(dtype).min], dtype)
    np.testing.assert_array_equal(reference.gelu(huge, approximate, None), np.maximum(huge, 0))
    grad_input, _ = reference.gelu_backward(np.ones(4, dtype), huge, approximate, None)
    np.testing.assert_array_equal(grad_input, [1, 0, 1, 0])


@pytest.mark.parametrize("approximate", FORMS)
def test_nan_and_infinity(approximate):
    x = np.array([np.nan, np.inf, 1.0])
    output = reference.gelu(x, approximate, None)
    assert np.isnan(output[0]) and output[1] == np.inf and np.isfinite(output[2])
    assert np.isnan(reference.gelu_backward(np.ones(3), x, approximate, None)[0][0])


@pytest.mark.parity
@pytest.mark.parametrize("approximate", FORMS)
def test_torch(approximate):
    torch = pytest.importorskip("torch")
    x, bias, grad = normal(6, (5, 39), scale=3), normal(7, (39,)), normal(8, (5, 39))

    def function(x, bias):
        return torch.nn.functional.gelu(x + bias, approximate=approximate)

    output, grad_input, grad_bias = torch_gradients(function, grad, x, bias)
    assert_close(reference.gelu(x, approximate, bias), output)
    found = reference.gelu_backward(grad, x, approximate, bias)
    assert_close(found[0], grad_input)
    assert_close(found[1], grad_bias)
