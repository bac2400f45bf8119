"""Rotary position embeddings on the CPU: a row of the tables serves all heads of its token from the first-level cache.

The input is read and written where it lies, through its address: query and key of a joined projection are turned in
place, in one pass.
"""

import numpy as np
from numba import prange

from .._numba import address_of, as_addressed_array, empty, helper, inline_helper, kernel
from .._numba.rows import flat, share, task_count
from .._numba.simd import first_lanes, fma, lanes, load_masked, pointer, pointer_at, store_masked

GRAIN = 1 << 16


def rotary(input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """(tokens, ..., head_dim) turned by rows `positions` of the tables, or by those of each token's place."""
    return _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, 1)


def rotary_backward(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """The gradient with respect to the input of `rotary`."""
    return _turn(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace, -1)


def _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, direction):
    source = as_addressed_array(input)
    target = source if inplace else empty(input.shape, input.dtype)
    if input.size:
        offsets = np.array([0, len(input)], np.int32) if cu_seqlens is None else flat(cu_seqlens)
        positions = np.empty(0, np.int64) if positions is None else flat(np.asarray(positions, np.int64))
        layout = *_layout(source), *_layout(target), *_sizes(input.shape), cos.shape[1]
        tables = flat(cos), flat(sin), offsets, positions
        _rotate(*tables, np.array(layout), interleaved, direction, task_count(input.size, GRAIN))
    if inplace and source is not input:
        input[...] = source
    return input if inplace else target


def _layout(array):
    """(address, strides in bytes of tokens, parts and heads)."""
    strides = array.strides[:-1]
    return address_of(array), strides[0], strides[1] if len(strides) == 3 else 0, strides[-1]


def _sizes(shape):
    """(tokens, parts, heads, head_dim)."""
    return shape if len(shape) == 4 else (shape[0], 1, *shape[1:])


# The integers of a layout: as `_turn` lists them.
SOURCE, TARGET, TOKENS, PARTS, HEADS, HEAD_DIM, HALF = 0, 4, 8, 9, 10, 11, 12


@inline_helper
def _turn_vector(x, c, s, sign, out, half, i, inside):
    a, b = load_masked(x, i, inside, 0.0), load_masked(x, half + i, inside, 0.0)
    cosine, sine = load_masked(c, i, inside, 0.0), load_masked(s, i, inside, 0.0) * sign
    store_masked(out, i, fma(-b, sine, a * cosine), inside)
    store_masked(out, half + i, fma(b, cosine, a * sine), inside)


@inline_helper
def _turn_halves(x, c, s, sign, out, half):
    """Pairs that lie half a head apart."""
    full = half - half % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        _turn_vector(x, c, s, sign, out, half, i, everywhere)
    if full < half:
        _turn_vector(x, c, s, sign, out, half, full, first_lanes(x, half - full))


@inline_helper
def _turn_neighbours(x, c, s, sign, out, half):
    """Pairs of neighbours."""
    for i in range(half):
        a, b, sine = x[2 * i], x[2 * i + 1], s[i] * sign
        out[2 * i] = a * c[i] - b * sine
        out[2 * i + 1] = a * sine + b * c[i]


@helper
def rotate_tokens(cos, sin, offsets, positions, layout, interleaved, direction, first, last):
    """The tokens from `first` to `last`."""
    half, rotary_dim, head_dim = layout[HALF], 2 * layout[HALF], layout[HEAD_DIM]
    in_place, sign, sequence = layout[SOURCE] == layout[TARGET], cos.dtype.type(direction), 0
    for token in range(first, last):
        while offsets[sequence + 1] <= token:
            sequence += 1
        position = positions[token] if positions.size > 0 else np.int64(token - offsets[sequence])
        c, s = pointer(cos, position * half), pointer(sin, position * half)
        for part in range(layout[PARTS]):
            for head in range(layout[HEADS]):
                x = pointer_at(_address(layout, SOURCE, token, part, head), sign)
                out = pointer_at(_address(layout, TARGET, token, part, head), sign)
                if interleaved:
                    _turn_neighbours(x, c, s, sign, out, half)
                else:
                    _turn_halves(x, c, s, sign, out, half)
                if not in_place:
                    for i in range(rotary_dim, head_dim):
                        out[i] = x[i]


@inline_helper
def _address(layout, at, token, part, head):
    return layout[at] + token * layout[at + 1] + part * layout[at + 2] + head * layout[at + 3]


@kernel(parallel=True)
def _rotate(cos, sin, offsets, positions, layout, interleaved, direction, tasks):
    tokens = layout[TOKENS]
    if tasks == 1:
        rotate_tokens(cos, sin, offsets, positions, layout, interleaved, direction, 0, tokens)
    else:
        for task in prange(tasks):
            first, last = share(tokens, task, tasks), share(tokens, task + 1, tasks)
            rotate_tokens(cos, sin, offsets, positions, layout, interleaved, direction, first, last)
