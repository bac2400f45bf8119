"""Embedding tables of bfloat16 and ids that are frequent; conformance/ has the rest."""

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from tests.kernels.arrays import HOST_LAYOUTS, with_layout
from tests.kernels.strategies import normal
from tests.refusals import refuses
from tests.tolerances import assert_close

ROWS, DIM = 13, 7


def ids(seed, shape, dtype=np.int64):
    """Ids in which some occur often and some never."""
    return (np.random.default_rng(seed).integers(0, ROWS - 2, shape) // 2 * 2).astype(dtype)


@pytest.mark.parametrize("layout", HOST_LAYOUTS)
@pytest.mark.parametrize("width", [1, 7, 128])
def test_every_bfloat16_is_widened_to_its_bits(cpu_backend, width, layout):
    bits = np.resize(np.arange(2**16, dtype=np.uint16), (-(-(2**16) // width), width))
    table = with_layout(bits.view(ml_dtypes.bfloat16), layout)  # inf and NaN, too
    rows = kernels.embedding(np.arange(len(table))[::-1], table)
    assert rows.dtype == np.float32 and rows.flags.c_contiguous and rows.flags.writeable
    np.testing.assert_array_equal(rows.view(np.uint32), bits.astype(np.uint32)[::-1] << 16)


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


def test_a_single_id_has_no_index_in_errors():
    refuses(ValueError, "^input is 4, expected a value from 0 to 3$", kernels.embedding, np.array(4), normal(1, (4, 2)))
