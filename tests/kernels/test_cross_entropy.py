"""cross_entropy of ignored rows and of huge and impossible logits; conformance/ has the rest."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.cross_entropy import reference
from tests.kernels.arrays import backward
from tests.kernels.strategies import NUMBA_DTYPES, normal

IGNORE = -100


def test_an_ignored_row_counts_for_nothing_whatever_it_holds():
    x = np.array([[np.nan, np.inf], [0, 0]])
    target = np.array([IGNORE, 1])
    losses, lse = reference.cross_entropy(x, target, IGNORE)
    np.testing.assert_allclose(losses, [0, np.log(2)])
    gradient = reference.cross_entropy_backward(np.array([np.inf, 1]), x, target, lse, IGNORE, None)
    np.testing.assert_allclose(gradient, [[0, 0], [0.5, -0.5]])


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_gradients_among_large_logits_keep_their_digits(cpu_backend, size):
    x = np.array([[size, size], [-size, -size], [size, -size]], np.float32)
    gradient = backward("cross_entropy", np.ones(3, np.float32), x, np.array([0, 1, 1]), reduction="none")
    np.testing.assert_allclose(gradient, [[-0.5, 0.5], [0.5, -0.5], [1, -1]], rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_sum_that_overflows_is_infinite(cpu_backend):
    x, target = np.array([[3e38, -3e38]] * 2, np.float32), np.array([1, 1])
    assert np.isinf(kernels.cross_entropy(x, target, reduction="sum", backend=cpu_backend))
    gradient = backward("cross_entropy", np.ones((), np.float32), x, target, backend=cpu_backend)
    np.testing.assert_array_equal(gradient, [[0.5, -0.5]] * 2)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_the_backward_reads_lse(cpu_backend, reduction, dtype):
    x, target = normal(1, (5, 39), dtype), np.array([3, IGNORE, 0, 38, 7])
    options = {"reduction": reduction, "backend": cpu_backend}
    (loss, lse), saved = kernels.cross_entropy(x, target, return_lse=True, save=True, **options)
    np.testing.assert_array_equal(loss, kernels.cross_entropy(x, target, **options))
    assert lse.shape == (5, 2) and lse.dtype == dtype
    np.testing.assert_allclose(lse.sum(axis=1), np.log(np.exp(x).sum(axis=1)), rtol=1e-5)
    grad = np.ones(loss.shape, dtype)
    found = kernels.cross_entropy_backward(grad, saved, backend=cpu_backend)
    other = kernels.cross_entropy_backward(grad, saved._replace(lse=lse + dtype(1)), backend=cpu_backend)
    assert (other[0] != found[0]).all()


def test_a_gradient_may_stand_in_the_place_of_the_logits(cpu_backend):
    x, target = normal(1, (5, 39), np.float32), np.array([3, IGNORE, 0, 38, 7])
    given, options = (np.ones((), np.float32), x, target), {"backend": cpu_backend}
    expected = backward("cross_entropy", *given, **options)
    assert backward("cross_entropy", *given, **options, out=x) is x
    np.testing.assert_array_equal(x, expected)
