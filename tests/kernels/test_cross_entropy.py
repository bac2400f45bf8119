"""cross_entropy/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given

from bertcore import kernels
from bertcore.kernels.cross_entropy import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds, sizes
from tests.tolerances import assert_close

IGNORE = -100
SIZES = [(5, 7), (39, 160), (1, 1), (3, 1), (0, 4)]


def targets(seed, rows, classes):
    """Targets of which about every third is ignored."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(rows) < 0.3, IGNORE, rng.integers(0, max(classes, 1), rows))


@pytest.mark.parametrize("size", SIZES)
def test_oracle(size):
    x, target = normal(1, size, scale=4), targets(2, *size)
    losses, lse = reference.cross_entropy(x, target, IGNORE)
    expected_losses, expected_lse = oracles.cross_entropy(x, target, IGNORE)
    assert_close(losses, expected_losses, at_least=1)
    assert_close(lse.sum(1), expected_lse)


@QUICK
@given(rows=sizes(), classes=sizes().filter(bool), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_low_precision(rows, classes, dtype, layout, seed):
    x, target = normal(seed, (rows, classes), dtype, layout, scale=3), targets(seed, rows, classes)
    wide = x.astype(np.float64)
    found, exact = reference.cross_entropy(x, target, IGNORE), reference.cross_entropy(wide, target, IGNORE)
    for name, one, other in zip(("losses", "lse"), found, exact, strict=True):
        assert one.dtype == (np.float64 if dtype == np.float64 else np.float32)
        assert_close(one, other, name=name, at_least=1)
    grad = normal(seed + 1, (rows,), exact[1].dtype)
    expected = reference.cross_entropy_backward(grad, wide, target, exact[1], IGNORE)
    gradient = reference.cross_entropy_backward(grad.astype(found[1].dtype), x, target, found[1], IGNORE)
    assert gradient.dtype == dtype and gradient.flags.c_contiguous and gradient.flags.writeable
    assert_close(gradient, expected, at_least=1)


@pytest.mark.parametrize("size", SIZES[:-1])
def test_finite_differences(size):
    size = (min(size[0], 5), min(size[1], 7))
    x, target, grad = normal(3, size), targets(4, *size), normal(5, size[:1])
    _, lse = reference.cross_entropy(x, target, IGNORE)
    gradient = reference.cross_entropy_backward(grad, x, target, lse, IGNORE)
    assert_gradient(lambda x: reference.cross_entropy(x, target, IGNORE)[0], x, grad, gradient)


def test_an_ignored_row_counts_for_nothing_whatever_it_holds():
    x = np.array([[np.nan, np.inf], [0, 0]])
    target = np.array([IGNORE, 1])
    losses, lse = reference.cross_entropy(x, target, IGNORE)
    np.testing.assert_allclose(losses, [0, np.log(2)])
    gradient = reference.cross_entropy_backward(np.array([np.inf, 1]), x, target, lse, IGNORE)
    np.testing.assert_allclose(gradient, [[0, 0], [0.5, -0.5]])


def test_a_class_may_be_the_ignored_one():
    losses, _ = reference.cross_entropy(np.zeros((2, 3)), np.array([0, 1]), 0)
    np.testing.assert_allclose(losses, [0, np.log(3)])


def test_huge_and_impossible_logits():
    x = np.array([[3e38, 3e38], [-np.inf, 0], [-np.inf, 0], [np.nan, 0], [np.inf, 0]], np.float32)
    losses, lse = reference.cross_entropy(x, np.array([0, 0, 1, 0, 0]), IGNORE)
    np.testing.assert_allclose(losses, [np.log(2), np.inf, 0, np.nan, np.nan], rtol=1e-6)
    np.testing.assert_allclose(lse.sum(1), [3e38, 0, 0, np.nan, np.nan if np.isnan(lse[4, 1]) else np.inf], rtol=1e-6)


def test_a_small_loss_among_large_logits_keeps_its_digits():
    x = np.array([[1000.0, 990.0]], np.float32)
    losses, _ = reference.cross_entropy(x, np.array([0]), IGNORE)
    np.testing.assert_allclose(losses, np.log1p(np.exp(-10.0)), rtol=2e-3)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_gradients_among_large_logits_keep_their_digits(cpu_backend, size):
    x = np.array([[size, size], [-size, -size], [size, -size]], np.float32)
    gradient = kernels.cross_entropy_backward(np.ones(3, np.float32), x, np.array([0, 1, 1]), reduction="none")
    np.testing.assert_allclose(gradient, [[-0.5, 0.5], [0.5, -0.5], [1, -1]], rtol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("size", SIZES)
def test_torch(size):
    torch = pytest.importorskip("torch")
    x, target, grad = normal(6, size, scale=3), targets(7, *size), normal(8, size[:1])

    def function(x):
        return torch.nn.functional.cross_entropy(x, torch.tensor(target), ignore_index=IGNORE, reduction="none")

    output, grad_input = torch_gradients(function, grad, x)
    losses, lse = reference.cross_entropy(x, target, IGNORE)
    assert_close(losses, output, at_least=1)
    assert_close(reference.cross_entropy_backward(grad, x, target, lse, IGNORE), grad_input, at_least=1)
