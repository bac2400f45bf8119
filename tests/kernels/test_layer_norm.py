"""layer_norm/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore.kernels.layer_norm import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, shapes
from tests.tolerances import assert_close

SHAPES = [(5, 7), (2, 3, 39), (160,), (4, 1), (0, 4), (4, 0)]
EPS = 1e-5


def arguments(seed, shape, dtype=np.float64, layout="contiguous"):
    """input, weight, bias, residual, grad_output."""
    width = shape[-1:]
    return (
        normal(seed, shape, dtype, layout, scale=2),
        normal(seed + 1, width, dtype, layout),
        normal(seed + 2, width, dtype, layout),
        normal(seed + 3, shape, dtype, layout),
        normal(seed + 4, shape, dtype, layout),
    )


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_affine", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_oracle(shape, with_affine, with_residual):
    x, weight, bias, residual, _ = arguments(1, shape)
    weight, bias = (weight, bias) if with_affine else (None, None)
    residual = residual if with_residual else None
    found = reference.layer_norm(x, weight, bias, EPS, residual)
    assert_close(found, oracles.layer_norm(x, weight, bias, EPS, residual))


@QUICK
@given(shape=shapes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(shape, dtype, layout, seed):
    x, weight, bias, residual, grad = arguments(seed, shape, dtype, layout)
    wide = [array.astype(np.float64) for array in (x, weight, bias, residual, grad)]
    found = reference.layer_norm(x, weight, bias, EPS, residual)
    assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
    assert_close(found, reference.layer_norm(*wide[:3], EPS, wide[3]), at_least=1, factor=5)  # few entries: see below
    gradients = reference.layer_norm_backward(grad, x, weight, EPS, residual)
    exact = reference.layer_norm_backward(wide[4], wide[0], wide[1], EPS, wide[3])
    for name, one, other in zip(("grad_input", "grad_weight", "grad_bias"), gradients, exact, strict=True):
        # A row of two nearly equal entries divides the rounding of the input by its small deviation.
        assert_close(one, other, name=name, at_least=1, factor=20 if shape[-1] < 5 else 5)


@pytest.mark.parametrize("shape", SHAPES)
def test_finite_differences(shape):
    x, weight, bias, residual, grad = arguments(2, shape)
    grad_input, grad_weight, grad_bias = reference.layer_norm_backward(grad, x, weight, EPS, residual)
    if shape != (4, 1):  # a row of one entry has no deviation: sqrt(eps) makes its function too sharp to step across
        assert_gradient(lambda x: reference.layer_norm(x, weight, bias, EPS, residual), x, grad, grad_input)
    assert_gradient(lambda w: reference.layer_norm(x, w, bias, EPS, residual), weight, grad, grad_weight)
    assert_gradient(lambda b: reference.layer_norm(x, weight, b, EPS, residual), bias, grad, grad_bias)


def test_weight_may_be_absent_in_the_backward():
    x, _, _, _, grad = arguments(3, (5, 7))
    ones = np.ones(7)
    with_ones = reference.layer_norm_backward(grad, x, ones, EPS, None)
    without = reference.layer_norm_backward(grad, x, None, EPS, None)
    assert without[1] is None
    assert_close(without[0], with_ones[0])
    assert_close(without[2], with_ones[2])


def test_variance_survives_a_large_mean():
    x = normal(4, (3, 160), np.float32) + np.float32(4096)
    expected = oracles.layer_norm(x.astype(np.float64), None, None, EPS, None)
    # The mean itself is rounded, to 2^-12; E[x^2] - mean^2 would be off by as much as the variance.
    np.testing.assert_allclose(reference.layer_norm(x, None, None, EPS, None), expected, rtol=0, atol=2**-11)


def test_the_sum_with_the_residual_is_not_rounded():
    x, residual = np.array([2048, 2048], np.float16), np.array([0.5, -0.5], np.float16)  # float16 holds 2048 and 2050
    np.testing.assert_allclose(reference.layer_norm(x, None, None, EPS, residual), [1, -1], rtol=1e-3)


def test_constant_rows_give_the_bias():
    found = reference.layer_norm(np.full((2, 7), 3.5, np.float32), None, np.arange(7, dtype=np.float32), 0.1, None)
    np.testing.assert_array_equal(found, np.tile(np.arange(7), (2, 1)))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_row_alone(poison):
    x = np.array([[0.0, poison, 1], [1, 2, 3]])
    output = reference.layer_norm(x, None, None, EPS, None)
    assert np.isnan(output[0]).all() and np.isfinite(output[1]).all()
    grad_input, _, _ = reference.layer_norm_backward(np.ones((2, 3)), x, None, EPS, None)
    assert np.isnan(grad_input[0]).all() and np.isfinite(grad_input[1]).all()


@pytest.mark.parity
@pytest.mark.parametrize("shape", SHAPES)
def test_torch(shape):
    torch = pytest.importorskip("torch")
    x, weight, bias, residual, grad = arguments(5, shape)

    def function(x, weight, bias, residual):
        return torch.nn.functional.layer_norm(x + residual, shape[-1:], weight, bias, EPS)

    output, *gradients = torch_gradients(function, grad, x, weight, bias, residual)
    assert_close(reference.layer_norm(x, weight, bias, EPS, residual), output)
    found = reference.layer_norm_backward(grad, x, weight, EPS, residual)
    for name, one, other in zip(("input", "weight", "bias"), found, gradients, strict=False):
        assert_close(one, other, name=f"grad_{name}", at_least=1)
    assert_close(found[0], gradients[3], name="the residual's gradient", at_least=1)
