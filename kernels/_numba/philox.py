"""The random bits of ../philox.py, a block of 64 columns at a time.

Plain loops over the 16 counters of a block: LLVM makes vectors of them (measured with AVX-512 at 2.5 GHz: 1 ns for each
element and thread).
"""

import numpy as np
from numba import uint32, uint64

from ..philox import BLOCK, COUNTERS, KEY_STEPS, MULTIPLIERS, ROUNDS
from .jit import helper, inline_helper

_EVEN, _ODD = (np.uint64(number) for number in MULTIPLIERS)
_FIRST_STEP, _SECOND_STEP = (np.uint32(number) for number in KEY_STEPS)
_HALF = np.uint64(32)


@inline_helper
def _words(counter, seed, row):
    """The four words of a counter of a row."""
    first, second, third, fourth = uint32(counter), uint32(row), uint32(row >> _HALF), uint32(0)
    low_key, high_key = uint32(seed), uint32(seed >> _HALF)
    for _ in range(ROUNDS):
        even, odd = uint64(first) * _EVEN, uint64(third) * _ODD
        first, second = uint32(uint32(odd >> _HALF) ^ second ^ low_key), uint32(odd)
        third, fourth = uint32(uint32(even >> _HALF) ^ fourth ^ high_key), uint32(even)
        low_key, high_key = uint32(low_key + _FIRST_STEP), uint32(high_key + _SECOND_STEP)
    return first, second, third, fourth


@helper
def fill_factors(factors, seed, row, block, threshold, factor):
    """`factor` where the bits of `row` are `threshold` or more, else 0, for the 64 columns of `block`; uint64 `seed`,
    `row`."""
    zero = factor - factor
    for i in range(COUNTERS):
        first, second, third, fourth = _words(block * COUNTERS + i, seed, row)
        factors[i] = factor if first >= threshold else zero
        factors[COUNTERS + i] = factor if second >= threshold else zero
        factors[2 * COUNTERS + i] = factor if third >= threshold else zero
        factors[3 * COUNTERS + i] = factor if fourth >= threshold else zero


@inline_helper
def fill_factors_of_rows(factors, seed, row, step, counter, threshold, factor, count):
    """The same of `count` rows, `step` apart from `row` on, for the four columns of a counter (`column_of`): (4,
    count)."""
    zero = factor - factor
    for i in range(count):
        first, second, third, fourth = _words(counter, seed, row + uint64(i) * step)
        factors[i] = factor if first >= threshold else zero
        factors[count + i] = factor if second >= threshold else zero
        factors[2 * count + i] = factor if third >= threshold else zero
        factors[3 * count + i] = factor if fourth >= threshold else zero


@inline_helper
def column_of(counter, word):
    """The column whose bits are this word of a counter."""
    return counter // COUNTERS * BLOCK + word * COUNTERS + counter % COUNTERS


__all__ = ["BLOCK", "COUNTERS", "column_of", "fill_factors", "fill_factors_of_rows"]
