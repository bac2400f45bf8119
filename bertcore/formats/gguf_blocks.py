"""The blocks of numbers in a GGUF file, as ggml defines them (https://github.com/ggml-org/ggml, ggml-common.h).

A block holds 32 or 256 numbers of a row: small integers, their scales, and for some kinds their minima.
"""

from collections.abc import Callable

import numpy as np

from bertcore.kernels.arrays import Array

PLAIN = {0: ("F32", "<f4"), 1: ("F16", "<f2"), 30: ("BF16", "<u2")}
BLOCK = 32  # numbers of a block of the kinds without a K
CHUNK = 1 << 14  # blocks that are dequantized at once
_D, _M = ("d", "<f2"), ("m", "<f2")


def _block(*fields: tuple) -> np.dtype:
    return np.dtype([(name, kind, shape[0]) if shape else (name, kind) for name, kind, *shape in fields])


_K_SCALES = ("scales", "u1", 12)
# The number of a kind -> its name, the numbers of a block, the fields of a block.
KINDS: dict[int, tuple[str, int, np.dtype]] = {
    **{number: (name, 1, np.dtype(kind)) for number, (name, kind) in PLAIN.items()},
    2: ("Q4_0", 32, _block(_D, ("q", "u1", 16))),
    3: ("Q4_1", 32, _block(_D, _M, ("q", "u1", 16))),
    6: ("Q5_0", 32, _block(_D, ("high", "u1", 4), ("q", "u1", 16))),
    7: ("Q5_1", 32, _block(_D, _M, ("high", "u1", 4), ("q", "u1", 16))),
    8: ("Q8_0", 32, _block(_D, ("q", "i1", 32))),
    10: ("Q2_K", 256, _block(("scales", "u1", 16), ("q", "u1", 64), _D, _M)),
    11: ("Q3_K", 256, _block(("high", "u1", 32), ("q", "u1", 64), _K_SCALES, _D)),
    12: ("Q4_K", 256, _block(_D, _M, _K_SCALES, ("q", "u1", 128))),
    13: ("Q5_K", 256, _block(_D, _M, _K_SCALES, ("high", "u1", 32), ("q", "u1", 128))),
    14: ("Q6_K", 256, _block(("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D)),
}


def _fields(data: Array, bits: int, width: int) -> Array:
    """(blocks, bytes) -> (blocks, numbers): within each `width` bytes, the lowest bits of all of them come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    spread = data.reshape(len(data), -1, 1, width) >> shifts
    return (spread & (2**bits - 1)).reshape(len(data), -1)


def _column(numbers: Array) -> Array:
    return numbers.astype(np.float32)[:, None]


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Return the scale and the minimum of each 32 numbers, (blocks, 8, 1): six bits each, in twelve bytes."""
    low, middle, high = np.split(blocks["scales"], 3, axis=1)
    scales = np.concatenate([low & 63, (high & 15) | (low >> 2 & 48)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 2 & 48)], axis=1)
    return tuple((_column(blocks[name]) * part)[..., None] for name, part in (("d", scales), ("m", minima)))


def _affine(integers: Array, scales: Array, minima: Array) -> Array:
    grouped = integers.reshape(*scales.shape[:2], -1)
    return (scales * grouped.astype(np.float32) - minima).reshape(len(integers), -1)


def _scaled(integers: Array, scales: Array) -> Array:
    """(blocks, 256) small integers times the scale of each 16."""
    factors = (_column(scales[0]) * scales[1].astype(np.float32))[..., None]
    return (factors * integers.reshape(len(integers), 16, 16).astype(np.float32)).reshape(len(integers), -1)


def _five_bits(blocks: Array) -> Array:
    return _fields(blocks["q"], 4, 16) | _fields(blocks["high"], 1, 1) << 4


def _q2_k(blocks: Array) -> Array:
    scales = _column(blocks["d"]) * (blocks["scales"] & 15).astype(np.float32)
    minima = _column(blocks["m"]) * (blocks["scales"] >> 4).astype(np.float32)
    return _affine(_fields(blocks["q"], 2, 32), scales[..., None], minima[..., None])


def _q3_k(blocks: Array) -> Array:
    low, high = np.split(blocks["scales"], [8], axis=1)
    scales = (_fields(low, 4, 8) | _fields(high, 2, 4) << 4).astype(np.int8) - np.int8(32)
    integers = _fields(blocks["q"], 2, 32).astype(np.int8) - ((_fields(blocks["high"], 1, 32) ^ 1) << 2).astype(np.int8)
    return _scaled(integers, (blocks["d"], scales))


def _q6_k(blocks: Array) -> Array:
    integers = (_fields(blocks["q"], 4, 64) | _fields(blocks["high"], 2, 32) << 4).astype(np.int8) - np.int8(32)
    return _scaled(integers, (blocks["d"], blocks["scales"]))


# A kind -> blocks to float32 numbers, (blocks, numbers).
_DEQUANTIZE: dict[str, Callable[[Array], Array]] = {
    "Q4_0": lambda blocks: _column(blocks["d"]) * (_fields(blocks["q"], 4, 16).astype(np.int8) - 8),
    "Q4_1": lambda blocks: _column(blocks["d"]) * _fields(blocks["q"], 4, 16) + _column(blocks["m"]),
    "Q5_0": lambda blocks: _column(blocks["d"]) * (_five_bits(blocks).astype(np.int8) - 16),
    "Q5_1": lambda blocks: _column(blocks["d"]) * _five_bits(blocks) + _column(blocks["m"]),
    "Q8_0": lambda blocks: _column(blocks["d"]) * blocks["q"],
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda blocks: _affine(_fields(blocks["q"], 4, 32), *_k_scales(blocks)),
    "Q5_K": lambda blocks: _affine(
        _fields(blocks["q"], 4, 32) | _fields(blocks["high"], 1, 32) << 4, *_k_scales(blocks)
    ),
    "Q6_K": _q6_k,
}


def dequantized(kind: str, blocks: Array) -> Array:
    """Return the numbers of blocks of a kind, (blocks,) records of KINDS, as float32 (blocks * numbers,)."""
    size = next(count for name, count, _ in KINDS.values() if name == kind)
    numbers = np.empty((len(blocks), size), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be inf or NaN
        for first in range(0, len(blocks), CHUNK):
            numbers[first : first + CHUNK] = _DEQUANTIZE[kind](blocks[first : first + CHUNK])
    return numbers.reshape(-1)


def quantized(numbers: Array) -> Array:
    """Return (..., n * 32) float32 numbers in blocks of Q8_0, (..., n) records, as ggml rounds them."""
    groups = numbers.astype(np.float32).reshape(*numbers.shape[:-1], -1, BLOCK)
    scale = np.abs(groups).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        factor = np.where(scale == 0, np.float32(0), np.float32(1) / scale)[..., None]
    products = groups * factor
    size = np.abs(products)
    floor = np.floor(size)
    blocks = np.empty(scale.shape, KINDS[8][2])
    blocks["d"] = scale
    blocks["q"] = np.sign(products) * (floor + np.floor(2 * (size - floor)))  # halves away from zero
    return blocks
