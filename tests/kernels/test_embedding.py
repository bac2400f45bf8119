"""embedding/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from bertcore import kernels
from bertcore.kernels.embedding import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import LAYOUTS, QUICK, dtypes, layouts, normal, seeds, shapes, with_layout
from tests.tolerances import assert_close

ROWS, DIM = 13, 7
SHAPES = [(5,), (2, 39), (160,), (), (0,), (3, 0)]


def ids(seed, shape, dtype=np.int64):
    """Ids in which some occur often and some never."""
    return (np.random.default_rng(seed).integers(0, ROWS - 2, shape) // 2 * 2).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("shape", SHAPES)
def test_oracle(shape, dtype):
    index, weight, grad = ids(1, shape, dtype), normal(2, (ROWS, DIM)), normal(3, (*shape, DIM))
    assert_close(reference.embedding(index, weight), oracles.embedding(index, weight))
    assert_close(reference.embedding_backward(grad, index, ROWS), oracles.embedding_backward(grad, index, ROWS))


@QUICK
@given(shape=shapes(min_dims=0, max_dims=2), dtype=dtypes(), layout=layouts(), seed=seeds())
def test_layouts_and_dtypes(shape, dtype, layout, seed):
    index, weight = with_layout(ids(seed, shape), layout), normal(seed, (ROWS, DIM), dtype, layout)
    found = reference.embedding(index, weight)
    assert found.flags.c_contiguous and found.flags.writeable and not np.shares_memory(found, weight)
    np.testing.assert_array_equal(found, weight[index])
    grad = normal(seed + 1, (*shape, DIM), dtype, layout)
    assert_close(
        reference.embedding_backward(grad, index, ROWS),
        oracles.embedding_backward(grad.astype(np.float64), index, ROWS),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [1, 7, 39, 160])
def test_bfloat16_tables_give_float32_rows(cpu_backend, dim, shape, layout):
    table = normal(10, (ROWS, dim), ml_dtypes.bfloat16, layout)
    index = np.asarray(ids(11, shape))
    rows = kernels.embedding(index, table)
    assert rows.dtype == np.float32 and rows.flags.c_contiguous and rows.flags.writeable
    np.testing.assert_array_equal(rows, table[index].astype(np.float32))


def test_every_bfloat16_is_widened_to_its_bits(cpu_backend):
    table = np.arange(2**16, dtype=np.uint16).reshape(512, 128).view(ml_dtypes.bfloat16)  # inf and NaN, too
    rows = kernels.embedding(np.arange(512)[::-1], table)
    np.testing.assert_array_equal(rows.view(np.uint32), table.view(np.uint16).astype(np.uint32)[::-1] << 16)


def test_finite_differences():
    index, weight, grad = ids(4, (3, 5)), normal(5, (ROWS, DIM)), normal(6, (3, 5, DIM))
    gradient = reference.embedding_backward(grad, index, ROWS)
    assert_gradient(lambda weight: reference.embedding(index, weight), weight, grad, gradient)


def test_a_frequent_id_keeps_its_digits():
    grad = np.full((100_000, 1), 0.1, np.float32)
    gradient = reference.embedding_backward(grad, np.zeros(100_000, np.int64), 2)
    assert_close(gradient, np.array([[100_000 * np.float64(np.float32(0.1))], [0]]))


@pytest.mark.parity
@pytest.mark.parametrize("shape", SHAPES)
def test_torch(shape):
    torch = pytest.importorskip("torch")
    index, weight, grad = ids(7, shape), normal(8, (ROWS, DIM)), normal(9, (*shape, DIM))
    output, grad_weight = torch_gradients(
        lambda weight: torch.nn.functional.embedding(torch.tensor(index), weight), grad, weight
    )
    assert_close(reference.embedding(index, weight), output)
    assert_close(reference.embedding_backward(grad, index, ROWS), grad_weight)
