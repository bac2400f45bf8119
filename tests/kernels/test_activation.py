"""activation/reference.py against Python's math, finite differences, itself in float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore.kernels.activation import ACTIVATIONS, reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, shapes
from tests.tolerances import assert_close


def test_every_name_has_an_oracle():
    assert set(ACTIVATIONS) == set(oracles.ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5, 7), (160,), (), (0, 3)])
def test_oracle(shape, name):
    x = normal(1, shape, scale=3)
    assert_close(reference.activation(x, name), oracles.activation(x, name))


@QUICK
@given(shape=shapes(), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision_rounds_once(shape, dtype, layout, seed):
    x, grad = (normal(seed + i, shape, dtype, layout, scale=2) for i in range(2))
    wide_x, wide_grad = x.astype(np.float64), grad.astype(np.float64)
    for name in ACTIVATIONS:
        found = reference.activation(x, name)
        assert found.dtype == dtype and found.flags.c_contiguous and found.flags.writeable
        assert_close(found, reference.activation(wide_x, name), name=name)
        gradient = reference.activation_backward(grad, x, name)
        assert_close(gradient, reference.activation_backward(wide_grad, wide_x, name), name=name, at_least=1)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_finite_differences(name):
    x, grad = normal(2, (3, 7), scale=2), normal(3, (3, 7))
    assert (np.abs(x) > 0.01).all(), "relu has a corner at 0"
    gradient = reference.activation_backward(grad, x, name)
    assert_gradient(lambda x: reference.activation(x, name), x, grad, gradient)


def test_relu_at_zero():
    np.testing.assert_array_equal(reference.activation_backward(np.ones(2), np.array([0.0, -0.0]), "relu"), [0, 0])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_huge_values(name):
    x = np.array([np.nan, 1e30, -1e30], np.float32)
    limits = {"tanh": (1, -1, 0, 0)}.get(name, (np.float32(1e30), 0, 1, 0))
    np.testing.assert_array_equal(reference.activation(x, name), [np.nan, *limits[:2]])
    gradient = reference.activation_backward(np.ones(3, np.float32), x, name)
    np.testing.assert_array_equal(gradient, [np.nan, *limits[2:]])


@pytest.mark.parity
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_torch(name):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    functions = {
        "relu": functional.relu,
        "tanh": torch.tanh,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    x, grad = normal(4, (5, 39), scale=3), normal(5, (5, 39))
    output, grad_input = torch_gradients(functions[name], grad, x)
    assert_close(reference.activation(x, name), output)
    assert_close(reference.activation_backward(grad, x, name), grad_input)
