"""dropout/reference.py and the generator under it: published numbers, frequencies, the derivative."""

import numpy as np
import pytest

from bertcore.kernels.dropout import reference
from bertcore.kernels.philox import philox, random_bits

ONES = 2**32 - 1


@pytest.mark.parametrize("counter, seed, words", [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
])  # fmt: skip
def test_known_answers(counter, seed, words):
    assert philox(np.array(counter, np.uint64), seed).tolist() == list(words)


def test_bits_are_a_function_of_seed_row_and_column():
    rows = np.array([0, 1, 2**32, 2**40 + 3])
    bits = random_bits(7, rows, 160)
    np.testing.assert_array_equal(random_bits(7, rows[2:], 39), bits[2:, :39])
    assert len(np.unique(bits)) == bits.size
    assert not np.isin(random_bits(8, rows, 160), bits).any()
    assert bits[1, 64 + 3 * 16 + 5] == philox(np.array([16 + 5, 1, 0, 0]), 7)[3]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_frequency(p):
    count = 100_000
    is_kept = reference.dropout(np.ones(count), p, 1, None) > 0
    spread = np.sqrt(p * (1 - p) / count)
    assert abs(1 - is_kept.mean() - p) < 5 * spread
    for step in (1, 16, 64):
        both = (is_kept[step:] & is_kept[:-step]).mean()
        assert abs(both - (1 - p) ** 2) < 10 * spread
