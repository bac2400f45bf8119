"""linear/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore.kernels.activation import ACTIVATIONS
from bertcore.kernels.linear import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, sizes
from tests.tolerances import assert_close

SIZES = [(5, 7, 3), (1, 39, 160), (13, 1, 1), (0, 4, 5), (3, 0, 5), (3, 4, 0)]  # rows, in_features, out_features


def arguments(seed, rows, in_features, out_features, dtype=np.float64, layout="contiguous"):
    """input, weight, bias, residual, grad_output."""
    return (
        normal(seed, (rows, in_features), dtype, layout),
        normal(seed + 1, (out_features, in_features), dtype, layout, scale=0.3),
        normal(seed + 2, (out_features,), dtype, layout),
        normal(seed + 3, (rows, out_features), dtype, layout),
        normal(seed + 4, (rows, out_features), dtype, layout),
    )


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("size", SIZES)
def test_oracle(size, activation):
    x, weight, bias, residual, _ = arguments(1, *size)
    found = reference.linear(x, weight, bias, activation, residual)
    assert_close(found, oracles.linear(x, weight, bias, activation, residual))
    assert_close(reference.linear(x, weight, None, None, None), oracles.linear(x, weight, None, None, None))


@QUICK
@given(rows=sizes(), in_features=sizes(), out_features=sizes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(rows, in_features, out_features, dtype, layout, seed):
    x, weight, bias, residual, grad = arguments(seed, rows, in_features, out_features, dtype, layout)
    wide = [array.astype(np.float64) for array in (x, weight, bias, residual, grad)]
    found = reference.linear(x, weight, bias, "gelu", residual)
    assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
    assert_close(found, reference.linear(*wide[:3], "gelu", wide[3]), at_least=1)
    gradients = reference.linear_backward(grad, x, weight, bias, "gelu")
    exact = reference.linear_backward(wide[4], *wide[:3], "gelu")
    for name, one, other in zip(("grad_input", "grad_weight", "grad_bias"), gradients, exact, strict=True):
        assert_close(one, other, name=name, at_least=1)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_finite_differences(activation):
    x, weight, bias, residual, grad = arguments(3, 4, 7, 3)
    gradients = reference.linear_backward(grad, x, weight, bias, activation)
    assert_gradient(lambda x: reference.linear(x, weight, bias, activation, residual), x, grad, gradients[0], "input")
    assert_gradient(lambda w: reference.linear(x, w, bias, activation, residual), weight, grad, gradients[1], "weight")
    assert_gradient(lambda b: reference.linear(x, weight, b, activation, residual), bias, grad, gradients[2], "bias")
    assert reference.linear_backward(grad, x, weight, None, activation)[2] is None


def test_a_prepared_weight_is_a_copy():
    x, weight, bias, residual, grad = arguments(4, 5, 7, 3)
    prepared = reference.prepare_weight(weight)
    assert (prepared.out_features, prepared.in_features, prepared.dtype) == (3, 7, np.float64)
    expected = reference.linear(x, weight, bias, None, residual)
    expected_gradients = reference.linear_backward(grad, x, weight, bias, None)
    original = weight.copy()
    weight[:] = np.nan
    np.testing.assert_array_equal(prepared.to_array(), original)
    prepared.to_array()[:] = np.nan
    np.testing.assert_array_equal(reference.linear(x, prepared, bias, None, residual), expected)
    for one, other in zip(reference.linear_backward(grad, x, prepared, bias, None), expected_gradients, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_bias_gradient_of_many_rows_keeps_its_digits():
    grad = np.full((100_000, 2), 0.1, np.float32)
    _, _, grad_bias = reference.linear_backward(
        grad, np.ones((100_000, 1), np.float32), np.ones((2, 1), np.float32), np.ones(2, np.float32), None
    )
    assert_close(grad_bias, np.full(2, 100_000 * np.float64(np.float32(0.1))))


def test_nan_spoils_its_row_alone():
    x, weight, bias, _, _ = arguments(5, 3, 7, 4)
    x[1, 2] = np.nan
    output = reference.linear(x, weight, bias, "relu", None)
    assert np.isnan(output[1]).all() and np.isfinite(output[[0, 2]]).all()


@pytest.mark.parity
@pytest.mark.parametrize("size", SIZES)
def test_torch(size):
    torch = pytest.importorskip("torch")
    x, weight, bias, residual, grad = arguments(6, *size)

    def function(x, weight, bias, residual):
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)) + residual

    output, *gradients = torch_gradients(function, grad, x, weight, bias, residual)
    assert_close(reference.linear(x, weight, bias, "gelu", residual), output)
    for one, other in zip(reference.linear_backward(grad, x, weight, bias, "gelu"), gradients, strict=False):
        assert_close(one, other)
