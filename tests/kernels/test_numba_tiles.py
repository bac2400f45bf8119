"""Operations on tiles: what AMX's manual says of them, on AMX or on its twin (BERTCORE_ISA=amx_emulated)."""

import numpy as np
import pytest

from bertcore.kernels._numba import LEVEL, aligned_empty, kernel
from bertcore.kernels._numba.amx import tiles as amx
from bertcore.kernels._numba.simd import pointer

with_tiles = pytest.mark.skipif(LEVEL.tiles is None, reason="this level has no tiles")


@kernel
def bfloat16_products(room, left, right, sums, count):
    amx.begin_tiles(pointer(room, 0))
    for i in range(count):
        amx.load_tile(pointer(room, 0), 0, pointer(sums, i * 256), 64)
        amx.load_tile(pointer(room, 0), 4, pointer(left, i * 512), 64)
        amx.load_tile(pointer(room, 0), 7, pointer(right, i * 512), 64)
        amx.multiply_bfloat16(pointer(room, 0), 0, 4, 7)
        amx.store_tile(pointer(room, 0), 0, pointer(sums, i * 256), 64)
    amx.end_tiles()


@kernel
def int8_product(room, left, right, sums):
    amx.begin_tiles(pointer(room, 0))
    amx.load_tile(pointer(room, 0), 3, pointer(sums, 0), 64)
    amx.load_tile(pointer(room, 0), 5, pointer(left, 0), 64)
    amx.load_tile(pointer(room, 0), 6, pointer(right, 0), 64)
    amx.multiply_int8(pointer(room, 0), 3, 5, 6)
    amx.store_tile(pointer(room, 0), 3, pointer(sums, 0), 64)
    amx.end_tiles()


@kernel
def moves(room, source, source_stride, target, target_stride):
    amx.begin_tiles(pointer(room, 0))
    amx.load_tile(pointer(room, 0), 2, pointer(source, 0), source_stride)
    amx.store_tile(pointer(room, 0), 2, pointer(target, 0), target_stride)
    amx.zero_tile(pointer(room, 0), 2)
    amx.store_tile(pointer(room, 0), 2, pointer(target, 4), target_stride)
    amx.end_tiles()


def room():
    return aligned_empty((amx.STATE_SIZE,), np.float32)


def flushed(x):
    """Denormals as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def widened(bits):
    return flushed((bits.astype(np.uint32) << 16).view(np.float32))


def multiply_add(a, b, c):
    """a * b + c rounded once: the product of two bfloat16 is exact in float64, the sum in long double."""
    return flushed((a.astype(np.longdouble) * b + c).astype(np.float32))


def manual_product(left, right, sums):
    """tdpbf16ps as the manual has it: left (16, 32), right (16, 16, 2) words by column, sums (16, 16)."""
    halves = []
    for half in (0, 1):
        total = np.zeros((16, 16), np.float32)
        for k in range(16):
            total = multiply_add(widened(left[:, 2 * k + half])[:, None], widened(right[k, :, half])[None], total)
        halves.append(total)
    return flushed(flushed(sums) + flushed(halves[0] + halves[1]))


def bfloat16_bits(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def samples(kind, count, random):
    """(left, right, sums): `count` tiles each."""
    left, right, sums = (random.standard_normal((count, *shape)) for shape in ((16, 32), (16, 16, 2), (16, 16)))
    if kind == "denormal":  # products and sums about the least normal number
        left, right, sums = left * 2.0**-63, right * 2.0**-62, sums * 2.0**-126
    if kind == "tiny factors":
        left, right = left * 2.0**-126, right * 2.0**60
    if kind == "cancelling":
        right[..., 1], left[..., 1::2] = -right[..., 0], left[..., ::2]
    if kind == "wide":
        left *= 2.0 ** random.integers(-20, 20, left.shape)
    return bfloat16_bits(left), bfloat16_bits(right), np.ascontiguousarray(sums, np.float32)


@with_tiles
@pytest.mark.parametrize("kind", ["usual", "denormal", "tiny factors", "cancelling", "wide"])
def test_bfloat16_equals_the_manual(kind):
    left, right, sums = samples(kind, 20, np.random.default_rng(0))
    expected = np.stack([manual_product(*each) for each in zip(left, right, sums, strict=True)])
    bfloat16_products(room(), left, right, sums, len(sums))
    np.testing.assert_array_equal(sums.view(np.uint32), expected.view(np.uint32))


@with_tiles
def test_infinity_and_nan_stay_in_rows_and_columns():
    left, right, sums = samples("usual", 1, np.random.default_rng(1))
    left[0, 3, 5], left[0, 7, 0], right[0, 2, 11, 1] = 0x7F80, 0x7FC0, 0xFF80
    with np.errstate(invalid="ignore"):
        expected = manual_product(left[0], right[0], sums[0])
    bfloat16_products(room(), left, right, sums, 1)
    np.testing.assert_array_equal(sums[0], expected)
    assert list(np.flatnonzero(~np.isfinite(sums[0]).all(axis=1))) == list(range(16))
    assert list(np.flatnonzero(~np.isfinite(sums[0]).all(axis=0))) == list(range(16))
    assert np.isfinite(sums[0]).sum() == 14 * 15


@with_tiles
def test_int8_is_exact_and_wraps():
    random = np.random.default_rng(2)
    left, right = random.integers(0, 256, (16, 64)), random.integers(-128, 128, (16, 16, 4))
    left[0], right[:, 0] = 255, -128
    sums = random.integers(-(2**31), 2**31, (16, 16))
    sums[0, 0] = -(2**31)
    exact = sums + left @ right.transpose(0, 2, 1).reshape(64, 16)
    found = sums.astype(np.int32)
    int8_product(room(), left.astype(np.uint8), right.astype(np.int8), found)
    np.testing.assert_array_equal(found, exact.astype(np.int32))  # the lowest 32 bits
    assert (exact != exact.astype(np.int32)).any()


@with_tiles
@pytest.mark.parametrize("stride", [64, 80, 4096])
def test_strides(stride):
    source = np.random.default_rng(3).integers(0, 2**32, (16, stride // 4), np.uint32).view(np.float32)
    target = np.ones((17, 36), np.float32)
    moves(room(), source, stride, target, 144)
    np.testing.assert_array_equal(target[:16, 4:20], 0)
    np.testing.assert_array_equal(target[:16, :4].view(np.uint32), source[:, :4].view(np.uint32))
    assert (target[:16, 20:] == 1).all() and (target[16] == 1).all()


def test_configuration():
    shape = np.array(amx.tile_configuration(), np.uint8)  # palette, row to begin with, 16 bytes per row, 16 rows
    expected = np.zeros(64, np.uint8)
    expected[0], expected[48:56] = 1, 16
    expected[16:32].view(np.uint16)[:] = 64
    np.testing.assert_array_equal(shape, expected)
