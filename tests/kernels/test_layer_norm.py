"""The references of layer_norm and rms_norm against naive oracles, finite differences, float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore import kernels
from bertcore.kernels.layer_norm import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, shapes
from tests.tolerances import assert_close

SHAPES = [(5, 7), (2, 3, 39), (160,), (4, 1), (0, 4), (4, 0)]
EPS = 1e-5


class LayerNorm:
    parameters = ("weight", "bias")
    forward, backward, oracle = kernels.layer_norm, kernels.layer_norm_backward, oracles.layer_norm

    def torch(self, torch, x, weight, bias):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


class RMSNorm:
    parameters = ("weight",)
    forward, backward, oracle = kernels.rms_norm, kernels.rms_norm_backward, oracles.rms_norm

    def torch(self, torch, x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


NORMS = pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])


@pytest.fixture(autouse=True)
def numpy_backend():
    with kernels.use_backend("numpy"):
        yield


def arguments(norm, seed, shape, dtype=np.float64, layout="contiguous"):
    """(grad_output, input, parameters by name, residual)."""
    parameters = {name: normal(seed + i, shape[-1:], dtype, layout) for i, name in enumerate(norm.parameters)}
    grad, x, residual = (normal(seed + 3 + i, shape, dtype, layout, scale=2) for i in range(3))
    return grad, x, parameters, residual


@NORMS
@pytest.mark.parametrize("options", ["", "weight", "bias", "residual", "weight bias residual"])
@pytest.mark.parametrize("shape", SHAPES)
def test_oracle(norm, shape, options):
    _, x, parameters, residual = arguments(norm, 1, shape)
    given = {name: array for name, array in (parameters | {"residual": residual}).items() if name in options}
    absent = dict.fromkeys((*norm.parameters, "residual"))
    assert_close(norm.forward(x, eps=EPS, **given), norm.oracle(x, eps=EPS, **absent | given))


@NORMS
@QUICK
@given(shape=shapes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(norm, shape, dtype, layout, seed):
    def both(convert):
        grad, x, parameters, residual = arguments(norm, seed, shape, dtype, layout)
        parameters = {name: convert(array) for name, array in parameters.items()}
        options = {"residual": convert(residual), "eps": EPS}
        yield norm.forward(convert(x), **parameters, **options)
        yield from norm.backward(convert(grad), convert(x), **parameters, **options)

    exact = both(lambda array: array.astype(np.float64))
    for found, truth in zip(both(lambda array: array), exact, strict=True):
        assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
        # A row of two nearly equal entries divides the rounding of the input by its small deviation.
        assert_close(found, truth, at_least=1, factor=20 if shape[-1] < 5 else 5)


@NORMS
@pytest.mark.parametrize("shape", SHAPES)
def test_finite_differences(norm, shape):
    grad, x, parameters, residual = arguments(norm, 2, shape)
    options = {"residual": residual, "eps": EPS}
    grad_input, *gradients = norm.backward(grad, x, **parameters, **options)
    if shape != (4, 1):  # a row of one entry has no deviation: sqrt(eps) makes its function too sharp to step across
        assert_gradient(lambda x: norm.forward(x, **parameters, **options), x, grad, grad_input)
    for (name, array), gradient in zip(parameters.items(), gradients, strict=True):
        assert_gradient(
            lambda a, name=name: norm.forward(x, **parameters | {name: a}, **options), array, grad, gradient
        )


@NORMS
def test_an_absent_parameter_has_no_gradient(norm, cpu_backend):
    grad, x, parameters, _ = arguments(norm, 3, (5, 7))
    without = norm.backward(grad, x, eps=EPS, backend=cpu_backend)
    assert without[1:] == (None,) * len(parameters)
    ones = norm.backward(grad, x, weight=np.ones(7), eps=EPS, backend=cpu_backend)
    assert_close(without[0], ones[0])


def test_variance_survives_a_large_mean():
    x = normal(4, (3, 160), np.float32) + np.float32(4096)
    expected = oracles.layer_norm(x.astype(np.float64), None, None, EPS, None)
    # The mean itself is rounded, to 2^-12; E[x^2] - mean^2 would be off by as much as the variance.
    np.testing.assert_allclose(reference.layer_norm(x, None, None, EPS, None), expected, rtol=0, atol=2**-11)


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
@pytest.mark.parametrize("dtype, largest", [(np.float32, 3e38), (np.float64, 1e308)])
def test_rows_whose_squares_overflow(norm, cpu_backend, dtype, largest):
    """The result does not depend on the scale of a row, nor do its neighbours."""
    _, x, parameters, _ = arguments(norm, 5, (3, 39), dtype)
    expected = norm.forward(x, **parameters, eps=0, backend=cpu_backend)
    assert_close(expected, norm.forward(x.astype(np.float64), **parameters_in_float64(parameters), eps=0))
    x[1] *= largest / np.abs(x[1]).max()
    assert_close(norm.forward(x, **parameters, eps=0, backend=cpu_backend), expected, factor=3)


def parameters_in_float64(parameters):
    return {name: array.astype(np.float64) for name, array in parameters.items()}


@NORMS
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_row_alone(norm, poison):
    x = np.array([[0.0, poison, 1], [1, 2, 3]])
    output, grad_input = norm.forward(x, eps=EPS), norm.backward(np.ones((2, 3)), x, eps=EPS)[0]
    for array in (output, grad_input):
        assert np.isnan(array[0]).any() and np.isfinite(array[1]).all()


@pytest.mark.parity
@NORMS
@pytest.mark.parametrize("shape", SHAPES)
def test_torch(norm, shape):
    torch = pytest.importorskip("torch")
    grad, x, parameters, residual = arguments(norm, 5, shape)
    names = [f"grad_{name}" for name in ("input", *parameters)]
    output, *gradients = torch_gradients(
        lambda x, residual, *given: norm().torch(torch, x + residual, *given), grad, x, residual, *parameters.values()
    )
    assert_close(norm.forward(x, **parameters, eps=EPS, residual=residual), output)
    found = norm.backward(grad, x, **parameters, eps=EPS, residual=residual)
    assert_close(found[0], gradients[1], name="the residual's gradient", at_least=1)
    for name, one, other in zip(names, found, [gradients[0], *gradients[2:]], strict=True):
        assert_close(one, other, name=name, at_least=1)
