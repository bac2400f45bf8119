"""Dropout of runs of elements: the random bits of their positions, the factors from these bits, and the products."""

import numpy as np
from numba import uint32, uint64

from ..philox import BLOCK, COUNTERS, KEY_STEPS, MULTIPLIERS, ROUNDS, threshold
from .compile import helper, inline_helper
from .simd import first_lanes, lanes, load, load_masked, pointer, select, store, store_masked

FIRST_ROW = np.uint64(0)  # of the random bits: all elements are one row


def dropping(p, seed, tasks, count, dtype):
    """Return seed, threshold, factor, and scratch for runs of `count` elements for each task."""
    factors = np.empty((tasks, (count // BLOCK + 2) * BLOCK), dtype)
    return np.uint64(seed), np.uint32(threshold(p)), dtype.type(1 / (1 - p)), factors


@helper
def keep_factors(seed, row, threshold, factor, factors, first, count):
    """Return a pointer to the factors of `count` elements of a row of bits from `first` on; 0 drops an element."""
    block = first // BLOCK
    start = block * BLOCK
    while block * BLOCK < first + count:
        fill_factors(pointer(factors, block * BLOCK - start), seed, row, block, threshold, factor)
        block += 1
    return pointer(factors, first - start)


@inline_helper
def _dropped(x, factors):
    return select(factors > 0.0, x * factors, 0.0)  # 0 for any element: inf * 0 would be NaN


@helper
def drop_line(x, factors, out, count):
    """Compute out = x * factors for `count` elements at pointers of one kind."""
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, _dropped(load(x, i), load(factors, i)))
    if full < count:
        tail = first_lanes(x, count - full)
        dropped = _dropped(load_masked(x, full, tail, 0.0), load_masked(factors, full, tail, 0.0))
        store_masked(out, full, dropped, tail)


@helper
def drop_and_add_line(x, factors, residual, out, count):
    """Compute out = x * factors + residual for `count` elements at pointers of one kind."""
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, _dropped(load(x, i), load(factors, i)) + load(residual, i))
    if full < count:
        tail = first_lanes(x, count - full)
        dropped = _dropped(load_masked(x, full, tail, 0.0), load_masked(factors, full, tail, 0.0))
        store_masked(out, full, dropped + load_masked(residual, full, tail, 0.0), tail)


# --- random bits ------------------------------------------------------------------------------------------------------
# The bits of ../philox.py, a block of 64 columns at a time, in plain loops over the 16 counters of a block, which LLVM
# vectorises.

_EVEN, _ODD = (np.uint64(number) for number in MULTIPLIERS)
_FIRST_STEP, _SECOND_STEP = (np.uint32(number) for number in KEY_STEPS)
_HALF = np.uint64(32)


@inline_helper
def _words(counter, seed, row):
    """Return the four words of one counter of a row."""
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
    """Write `factor` where the bits of `row` are at least `threshold`, else 0, for the 64 columns of `block`."""
    zero = factor - factor
    for i in range(COUNTERS):
        first, second, third, fourth = _words(block * COUNTERS + i, seed, row)
        factors[i] = factor if first >= threshold else zero
        factors[COUNTERS + i] = factor if second >= threshold else zero
        factors[2 * COUNTERS + i] = factor if third >= threshold else zero
        factors[3 * COUNTERS + i] = factor if fourth >= threshold else zero


@inline_helper
def fill_factors_of_rows(factors, seed, row, step, counter, threshold, factor, count):
    """Write the factors, (4, count), of `count` rows that are `step` apart, for the four columns of a counter."""
    zero = factor - factor
    for i in range(count):
        first, second, third, fourth = _words(counter, seed, row + uint64(i) * step)
        factors[i] = factor if first >= threshold else zero
        factors[count + i] = factor if second >= threshold else zero
        factors[2 * count + i] = factor if third >= threshold else zero
        factors[3 * count + i] = factor if fourth >= threshold else zero


@inline_helper
def column_of(counter, word):
    """Return the column whose bits are a word of a counter."""
    return counter // COUNTERS * BLOCK + word * COUNTERS + counter % COUNTERS


__all__ = ["BLOCK", "COUNTERS", "column_of", "fill_factors", "fill_factors_of_rows"]
