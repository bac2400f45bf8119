"""rotary: in place, odd memory, its tables, transformers; conformance/ has the rest."""

import numpy as np
import pytest

from bertcore import kernels
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import backward, to_gpu, with_layout
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

OFFSETS = np.array([0, 3, 3, 10], np.int32)


def rotary_backward(grad_output, *tables, **options):
    return backward("rotary", grad_output, grad_output.copy(), *tables, **options)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("function", [kernels.rotary, rotary_backward])
def test_in_place_gives_the_same_bits(cpu_backend, function, interleaved):
    tables = kernels.rotary_tables(10, 16)
    joined = normal(1, (10, 3, 4, 20), np.float32)
    expected = joined.copy()
    options = {"cu_seqlens": OFFSETS, "interleaved": interleaved}
    expected[:, :2] = function(joined[:, :2], *tables, **options)
    assert not np.array_equal(expected, joined)
    part = joined[:, :2]
    assert function(part, *tables, **options, inplace=True) is part
    np.testing.assert_array_equal(joined, expected)
    across = np.array(np.swapaxes(expected, 0, 3), order="C").swapaxes(0, 3)  # head_dim is not contiguous
    function(across, *tables, **options, inplace=True)
    np.testing.assert_array_equal(across, function(expected, *tables, **options))
    unaligned = with_layout(expected, "unaligned")
    assert function(unaligned, *tables, **options, inplace=True) is unaligned
    np.testing.assert_array_equal(unaligned, function(expected, *tables, **options))
    nothing = np.zeros((10, 3, 0), np.float32)  # its strides are 0
    assert function(nothing, *np.zeros((2, 10, 0), np.float32), inplace=True) is nothing


def test_angles():
    cos, sin = kernels.rotary_tables(8192, 64, 160000.0)
    assert cos.shape == sin.shape == (8192, 32) and cos.dtype == sin.dtype == np.float32
    assert cos.flags.c_contiguous and sin.flags.c_contiguous
    angle = 8191 * 160000.0 ** (-2 * 5 / 64)
    assert (cos[8191, 5], sin[8191, 5]) == (np.float32(np.cos(angle)), np.float32(np.sin(angle)))
    np.testing.assert_array_equal(cos[0], 1)


def test_scalings():
    def angles(length, **options):
        cos, sin = kernels.rotary_tables(length, 8, 1000.0, dtype=np.float64, **options)
        return np.arctan2(sin[1], cos[1])

    plain = angles(3)
    np.testing.assert_allclose(plain, 1000.0 ** (-np.arange(4) / 4), rtol=1e-14)
    np.testing.assert_allclose(angles(3, scaling="linear", factor=4), plain / 4, rtol=1e-14)
    ntk = kernels.rotary_tables(3, 8, 3000.0, dtype=np.float64)
    expected = np.arctan2(ntk[1][1], ntk[0][1]) / 3 ** (2 / 8)
    np.testing.assert_allclose(angles(3, scaling="ntk", factor=3), expected, rtol=1e-14)
    dynamic = {"scaling": "dynamic", "factor": 2, "trained_length": 20}
    np.testing.assert_array_equal(angles(20, **dynamic), plain)
    stretched = 1000 * (2 * 30 / 20 - 1) ** (8 / 6)
    np.testing.assert_allclose(angles(30, **dynamic), stretched ** (-np.arange(4) / 4), rtol=1e-14)
    np.testing.assert_array_equal(*(kernels.rotary_tables(9, 2, **more) for more in ({}, dynamic)))


def test_in_place_on_a_gpu_whatever_the_memory():
    joined, tables = normal(1, (10, 4, 20), np.float32), kernels.rotary_tables(10, 16)
    expected = kernels.rotary(joined, *tables, backend="numpy")
    with driverless():
        across = to_gpu(np.array(joined.swapaxes(0, 2), order="C").swapaxes(0, 2))  # head_dim is not contiguous
        assert kernels.rotary(across, *map(to_gpu, tables), inplace=True) is across
        assert_close(across.get(), expected)
