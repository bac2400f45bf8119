"""The softmax of attention's forward kernel, over keys in blocks (online: see forward.py).

Scores are (keys, width), a lane per query. `state` is a scratch of two wide vectors, then pointers to each query's
highest score and sum of exponentials so far, and to the factors that rescale the sums of a panel's queries.
"""

import math

import numpy as np
from numba import types

from ..._numba import by_types, helper, inline_helper
from ..._numba.low_precision.operands import store_depth
from ..._numba.products.blocks import copy_scaled, row_pointer
from ..._numba.rows import rounded_up
from ..._numba.simd import (
    broadcast,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    pointer,
    select,
    store,
    store_masked,
    wide_pointer,
)
from ..._numba.simd.math import exp2, rough_exp2

LOG2_E = 1 / math.log(2)


@helper
def begin_softmax(state, count):
    for i in range(0, count, lanes(state[0])):
        store(state[1], i, broadcast(state[0], -np.inf))
        store(state[2], i, broadcast(state[0], 0.0))


@helper
def continue_softmax(scores, keys, width, scale, state, first, storage):
    """Turn products (keys, width) into exp(score - highest); update highest, sum, and the factor of the sums so far.

    A wide vector holds the scores of several keys. Four sums, each of every fourth key, are added at the end, whatever
    the width, so that they do not depend on the number of queries.
    """
    together, peaks, totals, factors = state[0], pointer(state[1], first), pointer(state[2], first), state[3]
    x, wide = wide_pointer(scores, 0), wide_pointer(together, 0)
    end, step, half = keys * width, 4 * width, lanes(x)
    for j in range(end, rounded_up(end, step), lanes(scores)):
        store(scores, j, broadcast(scores, -np.inf))
    highest = broadcast(x, -np.inf)
    for j in range(0, end, half):
        value = load(x, j)
        highest = select(value > highest, value, highest)  # the sum restores a NaN lost here
    store(wide, 0, highest * scale)
    for d in range(0, width, lanes(scores)):
        old = load(peaks, d)
        peak = old
        for r in range(half // width):
            value = load(together, r * width + d)
            peak = select(value > peak, value, peak)
        store(peaks, d, peak)
        shift = _shift(peak)
        store(factors, d, exp2((old - shift) * LOG2_E))
        for r in range(half // width):
            store(together, r * width + d, shift)
    shifted, total, second = _shifted(load(wide, 0), scale, storage), broadcast(x, 0.0), broadcast(x, 0.0)
    for j in range(0, end, step):
        value = _weights(load(x, j), shifted, storage)
        store_depth(scores, j, value, width, storage)
        total += value
        if half < step:
            value = _weights(load(x, j + half), shifted, storage)
            store_depth(scores, j + half, value, width, storage)
            second += value
    store(wide, 0, total)
    store(wide, half, second)
    for d in range(0, width, lanes(scores)):
        summed = load(totals, d) * load(factors, d)
        for r in range(4):
            summed += load(together, r * width + d)
        store(totals, d, summed)


@by_types(inline=True)
def _shifted(shift, scale, storage):
    """Return the second argument of `_weights`."""
    if storage == types.uint16:
        return lambda shift, scale, storage: (-shift * LOG2_E, scale * LOG2_E)
    return lambda shift, scale, storage: (shift, scale)


@by_types(inline=True)
def _weights(x, shifted, storage):
    """Return exp(x * scale - shift), in the precision of the storage of the weights."""
    # In one step for bfloat16: rounding the shift scales all weights of a query equally. Float32 would lose precision.
    if storage == types.uint16:
        return lambda x, shifted, storage: rough_exp2(fma(x, shifted[1], shifted[0]))
    return lambda x, shifted, storage: exp2((x * shifted[1] - shifted[0]) * LOG2_E)


@inline_helper
def _shift(peak):
    """Return the number that is subtracted from the scores: the highest one, unless all are -inf."""
    return select(peak == -np.inf, 0.0, peak)


@helper
def rescale(sums, count, row, factors):
    for i in range(count):
        if factors[i] != 1:
            for d in range(0, row, lanes(sums)):
                store(sums, i * row + d, load(sums, i * row + d) * factors[i])


@helper
def finish_softmax(views, place, first, count, head_dim, sums, row, state, keep):
    """Divide by the sums, multiply by `keep`, dropout's factor, and write outputs and lse."""
    _, _, _, output, _, _, _, lse = views
    s, h, start, _, _, _ = place
    peaks, totals = state[1], state[2]
    for i in range(count):
        total, both = totals[i], row_pointer(lse, s, h, start + first + i, sums)
        factor = keep / total if total != 0 else total
        copy_scaled(pointer(sums, i * row), factor, head_dim, row_pointer(output, s, h, start + first + i, sums))
        both[0] = peaks[i] if total == total else total
        both[1] = math.log(total) if total != 0 else total


@helper
def finish_probs(row, first, end, peak, total):
    """Turn the scores from `first` to `end` of a row into probabilities."""
    shift, factor = _shift(broadcast(row, peak)), 1 / total if total != 0 else total
    for j in range(first, end, lanes(row)):
        inside = first_lanes(row, end - j)
        value = exp2((load_masked(row, j, inside, 0.0) - shift) * LOG2_E) * factor
        store_masked(row, j, value, inside)
