"""Rotary position embeddings (Su et al. 2021, https://arxiv.org/abs/2104.09864).

In each head of a token at position p, pair i, (a, b), is rotated by the angle whose cosine and sine are in row p,
column i of the tables:

    (a cos - b sin, a sin + b cos)

Pair i is the elements i and i + rotary_dim / 2, or, interleaved, 2 i and 2 i + 1. Elements from rotary_dim on are
unchanged. The gradient of a rotation is the inverse rotation: the same with -sin.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def rotary(input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Rotate (tokens, ..., head_dim) by rows `positions` of the tables, or by the row of each token's position."""
    output = input if inplace else np.array(input, order="C")
    tokens, half = len(input), cos.shape[1]
    if positions is None:
        positions = _places(tokens, cu_seqlens)
    angles = (tokens, *(1,) * (input.ndim - 2), half)
    c, s = cos[positions].reshape(angles), sin[positions].reshape(angles)
    first, second = slice(half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = widen(input[..., first]), widen(input[..., second])
    turned = a * c - b * s, a * s + b * c  # both before either is written: the output may be the input
    output[..., first], output[..., second] = turned
    return output


def rotary_backward(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Return the gradient with respect to the input of `rotary`."""
    return rotary(grad_output, cos, -sin, cu_seqlens, positions, interleaved, inplace)


def _places(tokens, cu_seqlens):
    """Return the position of each token in its sequence."""
    places = np.arange(tokens)
    return places if cu_seqlens is None else places - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
