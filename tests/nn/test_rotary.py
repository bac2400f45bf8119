"""The tables of rotary positions: how many rows they have, and for how long they are kept."""

import numpy as np
import pytest

from bertcore import kernels, use_backend
from bertcore.nn.rotary import MOST_RECORDED, RotarySpec, RotaryTables
from bertcore.passes import Pass

SPEC = RotarySpec(4, 100.0)


def angles(tables, lengths, positions=None, spec=SPEC, dtype="float32"):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    with use_backend("numpy"):
        return tables.angles(Pass.begin(), spec, offsets, positions, dtype)


def test_one_table_that_grows():
    tables = RotaryTables()
    short, again, longer = (angles(tables, lengths) for lengths in ([3, 5], [500], [3, 700]))
    assert again.cos is short.cos and len(short.cos) == 512 and len(longer.cos) == 1024
    assert angles(tables, [1]).cos is longer.cos
    for name, expected in zip(("cos", "sin"), kernels.rotary_tables(1024, 4, 100.0), strict=True):
        np.testing.assert_array_equal(getattr(longer, name), expected)
        np.testing.assert_array_equal(getattr(short, name), expected[:512])


@pytest.mark.parametrize(("lengths", "positions", "rows", "can_be_recorded"), [
    ([], None, 512, True),
    ([600, 600], None, 2048, True),
    ([600] * 40, None, 1024, False),
    ([MOST_RECORDED + 1], None, 2 * MOST_RECORDED, True),
    ([2], np.array([7, 900]), 1024, False),
])  # fmt: skip
def test_rows_are_those_of_the_longest_text_where_no_program_is_recorded(lengths, positions, rows, can_be_recorded):
    found = angles(RotaryTables(), lengths, positions)
    assert (len(found.cos), found.can_be_recorded) == (rows, can_be_recorded)


def test_texts_that_are_scaled_by_their_length_are_not_kept():
    tables, spec = RotaryTables(), RotarySpec(4, 100.0, scaling="dynamic", factor=2.0, trained_length=4)
    found = angles(tables, [3, 9, 5, 9], spec=spec)
    assert len(found.cos) == 4 + 9 + 5 and not found.can_be_recorded
    assert angles(tables, [3, 9, 5, 9], spec=spec).cos is not found.cos
