"""Embedding tables of bfloat16; conformance/ has the rest."""

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from tests.kernels.arrays import HOST_LAYOUTS, with_layout
from tests.kernels.strategies import normal
from tests.refusals import refuses
from tests.tolerances import assert_close


@pytest.mark.parametrize("layout", HOST_LAYOUTS)
@pytest.mark.parametrize("width", [1, 7, 128])
def test_every_bfloat16_is_widened_to_its_bits(cpu_backend, width, layout):
    bits = np.resize(np.arange(2**16, dtype=np.uint16), (-(-(2**16) // width), width))
    table = with_layout(bits.view(ml_dtypes.bfloat16), layout)  # inf and NaN, too
    rows = kernels.embedding(np.arange(len(table))[::-1], table)
    assert rows.dtype == np.float32 and rows.flags.c_contiguous and rows.flags.writeable
    np.testing.assert_array_equal(rows.view(np.uint32), bits.astype(np.uint32)[::-1] << 16)


def test_the_definition_of_sums():
    saved, grad, total = kernels.EmbeddingSaved(np.array([2, 0, 2]), 4), normal(1, (3, 2)), normal(2, (4, 2))
    expected = total + kernels.embedding_backward(grad, saved, backend="numpy")
    assert kernels.embedding_backward(grad, saved, add_to=total, backend="numpy") is total
    assert_close(total, expected)


def test_a_single_id_has_no_index_in_errors():
    refuses(ValueError, "^input is 4, expected a value from 0 to 3$", kernels.embedding, np.array(4), normal(1, (4, 2)))
