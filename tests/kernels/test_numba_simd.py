"""The SIMD layer under the Numba kernels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcore.kernels._numba import LEVEL, as_addressed_array, as_kernel_array, kernel
from bertcore.kernels._numba.simd import (
    absolute,
    broadcast,
    codegen,
    copysign,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    pointer,
    pointer_at,
    reduce_add,
    reduce_greatest,
    select,
    store,
    store_masked,
)
from bertcore.kernels._numba.simd import math as simd_math
from tests.refusals import refuses

from .forced_isa import FORCED

DTYPES = [np.float32, np.float64]
WIDTH = {np.float32: LEVEL.vector_bytes // 4, np.float64: LEVEL.vector_bytes // 8}


def elementwise(function):
    """A kernel out[:] = function(x) over full vectors and a masked tail."""

    @kernel
    def run(x, out):
        full = x.size - x.size % lanes(x)
        for i in range(0, full, lanes(x)):
            store(out, i, function(load(x, i)))
        tail = first_lanes(x, x.size - full)
        store_masked(out, full, function(load_masked(x, full, tail, 0.0)), tail)

    def call(x):
        out = np.empty_like(x)
        run(as_kernel_array(x), out)
        return out

    return call


exp, erf, tanh = elementwise(simd_math.exp), elementwise(simd_math.erf), elementwise(simd_math.tanh)
exp2, rough_exp2 = elementwise(simd_math.exp2), elementwise(simd_math.rough_exp2)
portable_rough_exp2 = elementwise(simd_math.portable_rough_exp2)
rough_gelu = elementwise(simd_math.rough_gelu)


def sample(dtype, low, high, count=50021):
    x = np.linspace(low, high, count)
    return np.concatenate([x, np.random.default_rng(0).normal(size=1009) * 1e-3]).astype(dtype)


def ulps(actual, exact):
    return float(np.max(np.abs(actual - exact) / np.spacing(np.abs(exact).astype(actual.dtype))))


@pytest.mark.parametrize("function, exact, limits, most", [
    (exp, np.exp, {np.float32: (-86.9, 88.7), np.float64: (-708.0, 709.7)}, 1.2),
    (exp2, np.exp2, {np.float32: (-125.4, 127.4), np.float64: (-1021.4, 127.4)}, 1.2),
    (erf, np.vectorize(math.erf), dict.fromkeys(DTYPES, (-7, 7)), 1.5),
    (tanh, np.vectorize(math.tanh), dict.fromkeys(DTYPES, (-7, 7)), 1.5),
])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_error(function, exact, limits, most, dtype):
    x = sample(dtype, *limits[dtype])
    found = function(x)
    assert ulps(found, exact(x.astype(np.longdouble))) < most
    assert function in (exp, exp2) or np.all(np.abs(found) <= 1)


def test_rough_exp2_error():
    x = np.concatenate([sample(np.float32, -126, 0, 2_000_003), np.arange(-126, 1).astype(np.float32)])
    x = np.concatenate([x, np.nextafter(x, np.float32(-1e9))])  # below a whole number, too
    x = x[(x >= -126) & (x <= 0)]
    error = np.abs(rough_exp2(x) / np.exp2(x.astype(np.float64)) - 1)
    assert 3.3e-6 < error.max() < 3.5e-6


@pytest.mark.parametrize("function", [rough_exp2, portable_rough_exp2])
def test_rough_exp2_of_integers(function):
    x = np.arange(-126, 1).astype(np.float32)
    np.testing.assert_array_equal(function(x), np.exp2(x))
    x = np.array([-np.inf, np.nan, -0.0, -126.5, -1e4, np.finfo(np.float32).min], np.float32)
    np.testing.assert_array_equal(function(x), np.array([0, np.nan, 1, 0, 0, 0], np.float32))


def test_rough_exp2_same_bits_on_all_cpus():
    """Of the instructions of AVX-512, where there are some, and of what stands in for them."""
    x = np.concatenate([sample(np.float32, -130, 0, 300_007), -np.logspace(-45, 38, 20_011).astype(np.float32)])
    if not LEVEL.fma:
        pytest.skip("the polynomial is rounded otherwise without FMA")
    np.testing.assert_array_equal(rough_exp2(x).view(np.uint32), portable_rough_exp2(x).view(np.uint32))


def test_rough_gelu_error():
    x = sample(np.float32, -8, 8, 2_000_003)
    exact = x * np.vectorize(math.erfc)(-x.astype(np.float64) / math.sqrt(2)) / 2
    error = np.abs(rough_gelu(x) - exact)
    assert 2e-5 < error.max() < 5e-5
    small = (np.abs(x) < 1) & (x != 0)
    assert np.max(error[small] / np.abs(exact[small])) < 1.6e-4


def test_rough_gelu_far_from_zero():
    x = np.array([-1e4, np.finfo(np.float32).min, np.nan, np.inf, 0.0], np.float32)
    np.testing.assert_array_equal(rough_gelu(x), np.array([0, 0, np.nan, np.inf, 0], np.float32))
    large = np.logspace(1, 38, 1001).astype(np.float32)
    np.testing.assert_allclose(rough_gelu(large), large, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4], dtype)
    np.testing.assert_array_equal(exp(x), np.array([np.inf, 0, np.nan, 1, 1, np.inf, 0], dtype))
    x2 = np.array([-np.inf, np.nan, 0.0, -1.0, -1e4], dtype)
    np.testing.assert_array_equal(exp2(x2), np.array([0, np.nan, 1, 0.5, 0], dtype))
    for function in (erf, tanh):
        expected = np.array([1, -1, np.nan, 0.0, -0.0, 1, -1], dtype)
        np.testing.assert_array_equal(function(x), expected)
        np.testing.assert_array_equal(np.signbit(function(x)[[3, 4]]), [False, True])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 15, 16, 17, 39, 160])
def test_masked_tail(dtype, size):
    guarded = np.full(size + 64, 7, dtype)
    guarded[32 : 32 + size] = np.arange(size)
    out = np.full(size + 64, -1, dtype)
    _copy(guarded.ctypes.data + 32 * guarded.itemsize, out.ctypes.data + 32 * out.itemsize, size, dtype(0))
    np.testing.assert_array_equal(out[32 : 32 + size], np.arange(size))
    assert np.all(out[:32] == -1) and np.all(out[32 + size :] == -1)


@kernel
def _copy(source_address, target_address, size, like):
    source, target = pointer_at(source_address, like), pointer_at(target_address, like)
    full = size - size % lanes(like)
    for i in range(0, full, lanes(like)):
        store(pointer(target, i), 0, load(source, i))
    tail = first_lanes(like, size - full)
    store_masked(target, full, load_masked(source, full, tail, 0.0), tail)


@kernel
def _masked_fill(x, out, count):
    store(out, 0, load_masked(x, 0, first_lanes(x, count), -5.0))


@pytest.mark.parametrize("count", [-3, 0, 1, 2, 1000])
def test_first_lanes_and_fill(count):
    width = WIDTH[np.float32]
    x, out = np.arange(width, dtype=np.float32), np.empty(width, np.float32)
    _masked_fill(x, out, count)
    np.testing.assert_array_equal(out, np.where(np.arange(width) < count, x, -5))


@kernel
def _operations(a, b, c, out):
    x, y, z = load(a, 0), load(b, 0), load(c, 0)
    n = lanes(a)
    store(out, 0, x + y - z * 2.0)
    store(out, n, -x / y)
    store(out, 2 * n, fma(x, y, z))
    store(out, 3 * n, copysign(absolute(x), y))
    w = broadcast(x, 3)
    w += x
    store(out, 4 * n, w)
    store(out, 5 * n, select((x < y) | (x >= 4.0) & ~(y == z), x, -1.0))
    store(out, 6 * n, select(x != x, 1.0, broadcast(x, 0.0)))


def _check_operations(a, b, c):
    out = np.empty((7, a.size), a.dtype)
    _operations(a, b, c, out)
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    fused = (a.astype(wide) * b + c).astype(a.dtype) if LEVEL.fma else a * b + c
    expected = [
        a + b - c * a.dtype.type(2), -a / b, fused,
        np.copysign(np.abs(a), b), a + a.dtype.type(3), np.where((a < b) | (a >= 4) & ~(b == c), a, a.dtype.type(-1)),
        np.isnan(a).astype(a.dtype),
    ]  # fmt: skip
    for row, (actual, wanted) in enumerate(zip(out, expected, strict=True)):
        np.testing.assert_array_equal(actual, wanted, err_msg=f"operation {row}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_agree_with_numpy(dtype):
    values = st.floats(-100, 100, width=16) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])

    @given(st.lists(st.tuples(values, values, values), min_size=WIDTH[dtype], max_size=WIDTH[dtype]))
    @settings(max_examples=60)
    def check(rows):
        a, b, c = np.array(rows, dtype).T.copy()
        with np.errstate(all="ignore"):
            _check_operations(a, b, c)

    check()


@kernel
def _reductions(x, out):
    out[0], out[1] = reduce_add(load(x, 0)), reduce_greatest(load(x, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_follow_one_tree(dtype):
    x = np.random.default_rng(1).normal(size=WIDTH[dtype]).astype(dtype)
    out = np.empty(2, dtype)
    _reductions(x, out)
    tree = x
    while tree.size > 1:
        tree = tree[: tree.size // 2] + tree[tree.size // 2 :]
    assert out[0] == tree[0] and out[1] == x.max()
    x[-1] = np.nan
    _reductions(x, out)
    assert np.isnan(out[0])


def test_typing_error():
    from numba.core.errors import TypingError

    @kernel
    def strided(x):
        return reduce_add(load(x, 0))

    refuses(TypingError, "C-contiguous", strided, np.zeros(64, np.float32)[::2])


def test_vector_width_of_forced_isa():
    _masked_fill(np.zeros(64, np.float32), np.zeros(64, np.float32), 1)
    assembly = "".join(_masked_fill.inspect_asm().values()) if _masked_fill.stats.cache_misses else ""
    assert FORCED not in ("avx2", "generic") or "zmm" not in assembly
    assert codegen.Vec(codegen.types.float32, 16).suffix == "v16f32"


def test_contiguous_arrays_are_not_copied():
    x = np.arange(12.0)
    assert as_kernel_array(x) is x
    x.flags.writeable = False
    alias = as_kernel_array(x)
    assert alias.flags.writeable and alias.ctypes.data == x.ctypes.data and alias.shape == x.shape
    address = x.ctypes.data
    del x  # the alias keeps the memory alive
    assert alias.ctypes.data == address and alias.sum() == 66


def test_other_arrays_become_contiguous():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    for view in (x.T, x[:, ::2], np.broadcast_to(x[0], (5, 4)), unaligned, x[:0, ::2]):
        result = as_kernel_array(view)
        assert result.flags.c_contiguous and result.flags.aligned and result.flags.writeable
        np.testing.assert_array_equal(result, view)


def test_addressed_arrays():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (x, x[:, ::2], x[::-1], x.swapaxes(0, 1), x[..., 1:], np.broadcast_to(x[0], (5, 3, 4)), x[..., :1]):
        assert as_addressed_array(view) is view
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for view in (x.T, x[..., ::2], unaligned, unaligned[:, 1:]):
        result = as_addressed_array(view)
        assert result is not view and result.flags.c_contiguous and result.flags.aligned
        np.testing.assert_array_equal(result, view)
        assert (as_addressed_array(view, unit_columns=False) is view) == view.flags.aligned
