"""CUDA linear in the emulator (and on a GPU where there is one) against the float64 definition.

Both kinds of product; in the emulator cuBLASLt is a stand-in, and test_cublaslt.py has what is particular to it.
"""

import numpy as np
import pytest

from bertcore.kernels import _cuda, is_batch_invariant
from bertcore.kernels._cuda import cublaslt
from bertcore.kernels.linear import cuda as linear_cuda
from bertcore.kernels.linear import reference
from tests.tolerances import assert_all_close, assert_close

from . import strategies
from .cuda_support import DTYPES, EmulatorTarget, batch_invariance, wide


@pytest.fixture(params=[True, False], ids=["one_kernel", "cublaslt"], autouse=True)
def is_invariant(request):
    """Both kinds of product: batch-invariant by one kernel, which rounds once, and cuBLASLt's."""
    with batch_invariance(request.param):
        yield request.param


only_by_one_kernel = pytest.mark.parametrize("is_invariant", [True], ids=["one_kernel"], indirect=True)


def problem(rows, in_features, out_features, dtype, seed=0):
    """(input, weight, bias, residual); each changes the result."""
    rng = np.random.default_rng(seed)
    shapes = (rows, in_features), (out_features, in_features), (out_features,), (rows, out_features)
    input, weight, bias, residual = map(rng.standard_normal, shapes)
    weight /= max(in_features, 1) ** 0.5
    return tuple(array.astype(dtype) for array in (input, weight, bias, residual))


def expected(input, weight, bias, activation, residual):
    """The definition in float64, from the very numbers the kernel is given."""
    return reference.linear(*map(wide, (input, weight, bias)), activation, wide(residual))


def check(cuda, input, weight, bias=None, activation=None, residual=None, prepare=False):
    def run(input, weight, bias, residual):
        prepared = linear_cuda.prepare_weight(weight, None, None) if prepare else weight
        return linear_cuda.linear(input, prepared, bias, activation, residual)

    found = cuda.run(run, input, weight, bias, residual)
    assert found.dtype == input.dtype
    assert found.flags.c_contiguous
    is_rounded_twice = activation is not None and not is_batch_invariant()  # before what cuBLASLt's epilogues cannot do
    assert_close(found, expected(input, weight, bias, activation, residual), factor=1 + is_rounded_twice)
    return found


@only_by_one_kernel
@pytest.mark.parametrize("shape", [(129, 40, 600), (600, 33, 130)], ids=str)
def test_large_tiles(cuda, dtype, shape):
    input, weight, bias, residual = problem(*shape, dtype)
    check(cuda, input, weight, bias, None, residual)
    if isinstance(cuda, EmulatorTarget):
        assert "128" in cuda.launches[0].kernel


@pytest.mark.parametrize("rows", [1, 5, 20, 600])
def test_a_row_alone_has_the_bits_it_has_among_others(cuda, dtype, rows, is_invariant):
    """In every tile; the stand-in for cuBLASLt sums in an order that depends on the number of rows, as cuBLASLt may."""
    input, weight, bias, residual = problem(rows, 200, 72, dtype)
    alone = cuda.run(linear_cuda.linear, input[-1:], weight, bias, None, residual[-1:])
    among = cuda.run(linear_cuda.linear, input, weight, bias, None, residual)
    is_same = alone.tobytes() == among[-1:].tobytes()
    assert is_same or not is_invariant
    if (rows, dtype, type(cuda)) == (5, DTYPES[0], EmulatorTarget):
        assert is_same == is_invariant, "the stand-in cannot tell the two kinds of product apart"


@only_by_one_kernel
@pytest.mark.parametrize("layout", strategies.LAYOUTS)
def test_prepared_weight_gives_the_original_back(cuda, dtype, layout):
    weight = strategies.normal(0, (13, 39), dtype, layout)
    prepared = {}

    def run(weight):
        prepared["form"] = linear_cuda.prepare_weight(weight, None, None)
        return prepared["form"].to_array()

    np.testing.assert_array_equal(cuda.run(run, weight), weight)
    form = prepared["form"]
    assert (form.out_features, form.in_features, form.dtype) == (13, 39, dtype)


@pytest.mark.parametrize("in_features, is_kept", [(16, True), (15, False)])
def test_a_weight_of_whole_vectors_is_prepared_without_a_copy(cuda, in_features, is_kept):
    input, weight, *_ = problem(3, in_features, 8, np.dtype(np.float16))

    def run(input, weight):
        prepared = linear_cuda.prepare_weight(weight, None, None)
        assert (prepared.array is weight) == is_kept
        prepared.to_array()[:] = 0
        return linear_cuda.linear(input, prepared, None, None, None)

    assert_close(cuda.run(run, input, weight), expected(input, weight, None, None, None))


def test_rows_of_a_vocabulary_begin_on_vectors(cuda, dtype, monkeypatch):
    """Rows of the scores, and of the products of their gradient, which has the same layout."""
    monkeypatch.setattr(_cuda, "WIDE", 65)
    input, weight, bias, residual = problem(20, 40, 65, dtype)
    asked, plan = [], cublaslt.plan
    monkeypatch.setattr(cublaslt, "plan", lambda path, product: asked.append(product) or plan(path, product))

    def run(input, weight, bias, residual):
        output = linear_cuda.linear(input, weight, bias, None, residual)
        assert output.shape == (20, 65) and output.strides[0] == _cuda.padded_width(65, dtype) * dtype.itemsize
        return output, *linear_cuda.linear_backward(output, input, weight, bias, True, input.dtype)

    output, *grads = cuda.run(run, input, weight, bias, residual)
    assert_close(output, expected(input, weight, bias, None, residual))
    exact = reference.linear_backward(
        *(it.astype(np.float64) for it in (output, input, weight, bias)), True, np.float64
    )
    assert_all_close(grads, exact)
    for product in asked:
        strides = product.left_strides, product.right_strides, product.output_strides
        assert all(between_rows * dtype.itemsize % 16 == 0 for _, between_rows in strides)


def test_values_beyond_the_input_are_not_read(cuda):
    storage = np.full((20, 64), np.nan, np.float16)
    storage[:, :40] = strategies.normal(0, (20, 40), np.float16)
    check(cuda, storage[:, :40], strategies.normal(1, (24, 40), np.float16))
    check(cuda, storage[:, :39], strategies.normal(1, (24, 39), np.float16))


@pytest.mark.slow
@only_by_one_kernel
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_turing(dtype):
    """Replacements of mma.sync and cp.async below sm_80."""
    input, weight, bias, residual = problem(20, 72, 40, dtype)
    check(EmulatorTarget(arch=75), input, weight, bias, "gelu_tanh", residual)
    check(EmulatorTarget(arch=75), input[:5], weight, bias, "gelu_tanh", residual[:5])
