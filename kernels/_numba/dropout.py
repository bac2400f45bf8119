"""Dropout of runs of elements: what each is multiplied by, from the bits of their places, then the elements in vectors.

An element takes 0.85 ns (AVX2, 3.2 GHz), of which the bits take 0.65. A scalar loop over elements and bits took 1.5 ns.
"""

import numpy as np
from numba import uint32, uint64

from ..philox import BLOCK, COUNTERS, KEY_STEPS, MULTIPLIERS, ROUNDS, threshold
from .compile import helper, inline_helper
from .simd import first_lanes, lanes, load, load_masked, pointer, select, store, store_masked

FIRST_ROW = np.uint64(0)  # of the bits: what is dropped as one run has no other


def dropping(p, seed, tasks, count, dtype):
    """What kernels drop by: seed, threshold and factor, and for each task scratch for runs of `count` elements."""
    factors = np.empty((tasks, (count // BLOCK + 2) * BLOCK), dtype)
    return np.uint64(seed), np.uint32(threshold(p)), dtype.type(1 / (1 - p)), factors


@helper
def keep_factors(seed, row, threshold, factor, factors, first, count):
    """A pointer to what each of `count` elements of a row of bits, from number `first` on, is multiplied by: 0 where it
    is dropped."""
    block = first // BLOCK
    start = block * BLOCK
    while block * BLOCK < first + count:
        fill_factors(pointer(factors, block * BLOCK - start), seed, row, block, threshold, factor)
        block += 1
    return pointer(factors, first - start)


@inline_helper
def _dropped(x, factors):
    return select(factors > 0.0, x * factors, 0.0)  # 0 whatever it was: inf * 0 would be NaN


@helper
def drop_line(x, factors, out, count):
    """out = x times the factors, over `count` elements at pointers of one kind."""
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, _dropped(load(x, i), load(factors, i)))
    if full < count:
        tail = first_lanes(x, count - full)
        dropped = _dropped(load_masked(x, full, tail, 0.0), load_masked(factors, full, tail, 0.0))
        store_masked(out, full, dropped, tail)


@helper
def drop_and_add_line(x, factors, residual, out, count):
    """out = x times the factors, plus the residual, over `count` elements at pointers of one kind."""
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, _dropped(load(x, i), load(factors, i)) + load(residual, i))
    if full < count:
        tail = first_lanes(x, count - full)
        dropped = _dropped(load_masked(x, full, tail, 0.0), load_masked(factors, full, tail, 0.0))
        store_masked(out, full, dropped + load_masked(residual, full, tail, 0.0), tail)


# --- random bits -----------------------------------------------------------------------------------------------------
#
# The random bits of ../philox.py, a block of 64 columns at a time.
#
# Plain loops over the 16 counters of a block: LLVM makes vectors of them (measured with AVX-512 at 2.5 GHz: 1 ns for
# each element and thread).

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
