"""Embedding tables of bfloat16 and ids that are frequent; conformance/ has the rest."""

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from tests.kernels.strategies import LAYOUTS, normal
from tests.tolerances import assert_close

ROWS, DIM = 13, 7
SHAPES = [(5,), (2, 39), (160,), (), (0,), (3, 0)]


def ids(seed, shape, dtype=np.int64):
    """Ids in which some occur often and some never."""
    return (np.random.default_rng(seed).integers(0, ROWS - 2, shape) // 2 * 2).astype(dtype)


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


@pytest.mark.parametrize("dim", [1, 7, 39, 160])
def test_a_gradient_is_added_to_an_array_in_place(cpu_backend, dim):
    index, grad = ids(1, (2, 39)), normal(2, (2, 39, dim), np.float32)
    array = normal(3, (ROWS, dim), np.float32)
    saved = kernels.EmbeddingSaved(index, ROWS)
    before, alone = array.copy(), kernels.embedding_backward(grad, saved)
    assert kernels.embedding_backward(grad, saved, add_to=array) is array
    assert_close(array, before.astype(np.float64) + alone)
    never = np.setdiff1d(np.arange(ROWS), index)
    np.testing.assert_array_equal(array[never], before[never])
