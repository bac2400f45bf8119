"""What is computed on tiles before they are taken unasked: products and attention whose every bit is known.

All numbers are small integers and all scales powers of two, so that the order of a sum and the rounding of a product do
not matter. Attention looks its values up: the score of a query and its own key is 128 or more above the others', whose
weights are zero in float32. Rows, columns and depths fill no whole number of tiles.

_numba/compile/tile_verdict.py runs this in a process of its own.
"""

import sys

import numpy as np

from .attention import attention
from .linear import linear, prepare_weight
from .threads import set_num_threads

ROWS, DEPTH, COLUMNS = 75, 168, 77
HEADS, LENGTH, HEAD_DIM = 2, 77, 40
SIZES = np.where(np.arange(HEAD_DIM) < 32, 1.0, 2.0)  # of a code's numbers; the sum of their squares is 64


def prove(level: str) -> None:
    """End the process with 0 if what is computed at this level is right in every bit, else with a sentence."""
    from ._numba import LEVEL

    if LEVEL.name != level:
        sys.exit(f"the level is {LEVEL.name}, expected {level}")
    set_num_threads(2)
    for name, compute in {"bfloat16": _bfloat16, "int8": _int8, "attention": _attention}.items():
        found, expected = compute(np.random.default_rng(0))
        if found.dtype != np.float32 or found.tobytes() != expected.astype(np.float32).tobytes():
            sys.exit(f"{name}: {np.count_nonzero(found != expected)} of {expected.size} results are wrong")


def _bfloat16(random):
    """(found, expected) of a product by a weight in bfloat16."""
    x, weight = random.integers(-8, 9, (ROWS, DEPTH)), random.integers(-8, 9, (COLUMNS, DEPTH))
    bias, residual = random.integers(1, 99, COLUMNS), random.integers(10**5, 10**6, (ROWS, COLUMNS))
    prepared = prepare_weight(weight.astype(np.float32), dtype="bfloat16", backend="numba")
    found = linear(_float(x), prepared, _float(bias), residual=_float(residual), backend="numba")
    return found, x @ weight.T + bias + residual


def _int8(random):
    """(found, expected) of a product by a weight in int8; each row spans 254, so that its step is 1."""
    x, weight = random.integers(-127, 128, (ROWS, DEPTH)), random.integers(-127, 128, (COLUMNS, DEPTH))
    x[:, 0], x[:, -1] = -127, 127
    scale = 2.0 ** random.integers(-3, 4, COLUMNS)
    prepared = prepare_weight(weight.astype(np.int8), _float(scale), backend="numba")
    return linear(_float(x), prepared, backend="numba"), x @ weight.T * scale


def _attention(random):
    """(found, expected) of attention where each query finds one key: codes of +1 and -1, or +2 and -2, all different.

    The score of a query and its own key is a power of two, so that scale and shift leave nothing of it.
    """
    codes = np.where(np.arange(LENGTH)[:, None] >> np.arange(HEAD_DIM) % 8 & 1, SIZES, -SIZES)
    key = np.broadcast_to(codes, (1, HEADS, LENGTH, HEAD_DIM))
    wanted = np.stack([random.permutation(LENGTH) for _ in range(HEADS)])
    value = random.integers(-128, 129, key.shape)
    query = codes[wanted][None]
    expected = np.stack([value[0, head, wanted[head]] for head in range(HEADS)])[None]
    arrays = _float(query), _float(key), _float(value)
    return attention(*arrays, scale=64.0, compute_dtype="bfloat16", backend="numba"), expected


def _float(array):
    return np.ascontiguousarray(array, np.float32)
