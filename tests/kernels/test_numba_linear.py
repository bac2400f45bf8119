"""Linear on Numba: packing, blocking, and bits that depend on the row alone."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numba.core.runtime import _nrt_python as _nrt
from numba.core.runtime import rtsys

from bertcore import kernels
from bertcore.kernels import activation_names
from bertcore.kernels._numba import LEVEL, THREADING_LAYER
from bertcore.kernels._numba.compile.isa import has_pair_dot
from bertcore.kernels._numba.low_precision import ROUNDED
from bertcore.kernels._numba.products import CHUNK_DEPTH as BLOCK
from bertcore.kernels._numba.products import LEAST_PACKED, LEAST_USES, PACKED_BYTES, WEIGHT_PANEL_VECTORS, WIDENED_ROWS
from bertcore.kernels._numba.products import TASK_ROWS as BLOCK_ROWS
from bertcore.kernels.linear import MOST_INT8_FEATURES, reference
from bertcore.kernels.linear import cpu as linear_cpu
from bertcore.kernels.linear.cpu import linear, linear_backward, prepare_weight
from bertcore.kernels.linear.cpu.low_precision import run_int8
from bertcore.kernels.linear.cpu.weight_gradient import CHUNK_ROWS, PART, PART_COLUMNS, STRIP
from bertcore.kernels.threads import threads_here
from tests.kernels.amx_code import array, product
from tests.kernels.strategies import NUMBA_DTYPES, QUICK, layouts, normal, seeds, sizes
from tests.tolerances import assert_close, assert_same_arrays

LOW_PRECISION = ["bfloat16", "int8", "int8_weight_only"]
ROUNDED_KINDS = ["int8"] if ROUNDED is np.float32 else ["int8", "bfloat16"]  # of weights after rounded inputs
WIDENED = ["int8_weight_only"] if LEVEL.bfloat16_dot else ["int8_weight_only", "bfloat16"]  # to float32
every_dtype = pytest.mark.parametrize("dtype", NUMBA_DTYPES)
every_kind = pytest.mark.parametrize("kind", [*NUMBA_DTYPES, *LOW_PRECISION])  # of weight
ACTIVATIONS = [None, *activation_names.ACTIVATIONS]
# Rows are packed for as many columns of 4 bytes.
MANY_COLUMNS = 2 * LEAST_USES * WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // 4 + 1


def arguments(seed, rows, in_features, out_features, kind=np.float32, layout="contiguous"):
    """input, weight, bias, residual: floats that a weight of this kind is prepared from and stands beside."""
    dtype = np.float32 if kind in LOW_PRECISION else kind
    return (
        normal(seed, (rows, in_features), dtype, layout),
        normal(seed + 1, (out_features, in_features), dtype, layout, scale=max(in_features, 1) ** -0.5),
        normal(seed + 2, (out_features,), dtype, layout),
        normal(seed + 3, (rows, out_features), dtype, layout),
    )


def both_weights(weight, kind):
    """The weight as the reference takes it, widened where Numba does that, and as Numba prepares it."""
    if kind not in LOW_PRECISION:
        return weight.astype(np.float64), prepare_weight(weight, None, None)
    if kind == "bfloat16":
        weight = weight.astype(ml_dtypes.bfloat16)
        of_reference = weight if LEVEL.bfloat16_dot else weight.astype(np.float32)
        return reference.prepare_weight(of_reference, None, None), prepare_weight(weight, None, None)
    values = kernels.quantize_weight(weight, per_group=kind == "int8_weight_only")
    return reference.prepare_weight(*values, None), prepare_weight(*values, None)


def by_definition(x, of_reference, bias, activation, residual):
    """The reference's output: in float64 but beside a weight in low precision, where the input is rounded, too."""
    if isinstance(of_reference, np.ndarray):
        x, bias, residual = (None if it is None else it.astype(np.float64) for it in (x, bias, residual))
    return reference.linear(x, of_reference, bias, activation, residual)


@every_kind
@QUICK
@given(
    rows=sizes(), in_features=sizes(), out_features=sizes(), layout=layouts(),
    activation=st.sampled_from(ACTIVATIONS), extras=st.tuples(*[st.booleans()] * 3), seed=seeds(),
)  # fmt: skip
def test_any_size_and_layout(kind, rows, in_features, out_features, layout, activation, extras, seed):
    x, weight, bias, residual = arguments(seed, rows, in_features, out_features, kind, layout)
    with_bias, with_residual, is_prepared = extras
    bias, residual = bias if with_bias else None, residual if with_residual else None
    of_reference, prepared = both_weights(weight, kind)
    found = linear(x, prepared if is_prepared or kind in LOW_PRECISION else weight, bias, activation, residual)
    assert found.dtype == x.dtype and found.flags.c_contiguous and found.flags.writeable
    factor = 25 if activation == "gelu" and kind in ROUNDED_KINDS else 1  # rough_gelu
    assert_close(found, by_definition(x, of_reference, bias, activation, residual), factor=factor, at_least=1)


@pytest.mark.parametrize("kind", LOW_PRECISION)
def test_gelu_is_rough_after_products_of_rounded_rows_only(kind):
    x, weight, bias, _ = arguments(3, 39, 97, 160, kind)
    prepared = both_weights(weight, kind)[1]
    exact = kernels.gelu(linear(x, prepared, bias, None, None))
    error = np.abs(linear(x, prepared, bias, "gelu", None) - exact).max()
    assert 1e-5 < error < 5e-5 if kind in ROUNDED_KINDS else error == 0


@every_kind
@pytest.mark.parametrize("layout", ["contiguous", "fortran", "every_second", "reversed", "slice", "read_only"])
@pytest.mark.parametrize("shape", [(1, 1), (39, 160), (97, 17), (48, 16), (0, 5), (5, 0)])
def test_prepared_weight_to_array(shape, layout, kind):
    dtype = np.float32 if kind in LOW_PRECISION else kind
    original, prepared = both_weights(normal(2, shape, dtype, layout), kind)
    name = kind.removesuffix("_weight_only") if kind in LOW_PRECISION else np.dtype(kind).name
    assert (prepared.out_features, prepared.in_features, prepared.dtype.name) == (*shape, name)
    assert prepared.is_grouped == (kind == "int8_weight_only")
    copy = prepared.to_array()
    assert copy.flags.c_contiguous and copy.flags.writeable and not np.shares_memory(copy, prepared.panels)
    np.testing.assert_array_equal(copy, original if isinstance(original, np.ndarray) else original.to_array())


@pytest.mark.parametrize("in_features", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 39])
@pytest.mark.parametrize("rows", [1, 3, BLOCK_ROWS - 1, BLOCK_ROWS + 5])
def test_more_than_one_block(rows, in_features):
    x, weight, bias, residual = arguments(1, rows, in_features, 97)
    found = linear(x, weight, bias, "gelu", residual)
    assert_close(found, by_definition(x, weight.astype(np.float64), bias, "gelu", residual))


@every_kind
def test_same_bits_for_a_row_in_any_batch_and_thread_count(kind):
    x, weight, bias, residual = arguments(4, 300, 4 * BLOCK + 39, 97, kind)
    _, prepared = both_weights(weight, kind)
    whole = linear(x, prepared, bias, "gelu", residual)
    for first, last in [(0, 1), (7, 8), (299, 300), (5, 7), (3, 8), (1, 12), (120, 140), (0, 128), (13, 300)]:
        part = linear(x[first:last], prepared, bias, "gelu", residual[first:last])
        np.testing.assert_array_equal(part, whole[first:last])
    for count in (1, 2, 3, 7):
        with threads_here(count):
            np.testing.assert_array_equal(linear(x, prepared, bias, "gelu", residual), whole)


@pytest.mark.parametrize("dtype", [*NUMBA_DTYPES, *WIDENED])
@pytest.mark.parametrize("in_features", [16, 39, 2 * BLOCK + 7])
@pytest.mark.parametrize("rows", [LEAST_PACKED, BLOCK_ROWS + 45])
def test_same_bits_with_and_without_packed_rows(rows, in_features, dtype, monkeypatch):
    kept, make_scratch = [], linear_cpu.make_scratch

    def keep(*arguments):
        kept.append(make_scratch(*arguments))
        kept[-1].fill(0)
        return kept[-1]

    monkeypatch.setattr(linear_cpu, "make_scratch", keep)
    monkeypatch.setattr(linear_cpu, "num_threads", lambda: 1)
    floats = np.float32 if dtype in WIDENED else dtype
    columns = 2 * LEAST_USES * WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // np.dtype(floats).itemsize
    x, weight, bias, residual = arguments(5, rows, in_features, columns, floats)
    _, packed = both_weights(weight, dtype)
    together = linear(x, packed, bias, "gelu", residual)
    scratch = kept.pop()
    assert (x[-1, -1] in scratch) == (PACKED_BYTES > 0)  # the last row
    for i in (0, 7, rows // 2, rows - 1):
        alone = linear(x[i : i + 1], packed, bias, "gelu", residual[i : i + 1])
        np.testing.assert_array_equal(together[i : i + 1], alone)
    assert (kept[0].nbytes < scratch.nbytes) == (PACKED_BYTES > 0)


def test_same_bits_for_any_thread_count():
    # Threads take some blocks of packed rows whole and share the rest: 5 and 1, 4 and 2, 3 and 3, 0 and 6.
    x, weight, bias, residual = arguments(5, 5 * BLOCK_ROWS + 12, 800, 200)
    grad = normal(9, residual.shape, np.float32)

    def results():
        return linear(x, weight, bias, "tanh", residual), *linear_backward(grad, x, weight, bias, True, x.dtype)

    expected = results()
    for count in (1, 2, 3, 7):
        with threads_here(count):
            assert_same_arrays(results(), expected)


@pytest.mark.parametrize("dtype", [None, *LOW_PRECISION])
def test_threads_allocate_nothing(dtype):
    """Failed allocations within parallel regions are not reported: NumPy allocates all scratch before."""
    x, weight, bias, residual = arguments(5, 300, 800, 200)
    prepared = kernels.prepare_weight(weight, dtype=dtype, backend="numba")
    _nrt.memsys_enable_stats()

    def allocations(count):
        with threads_here(count):
            linear(x, prepared, bias, None, residual)
            before = rtsys.get_allocation_stats().alloc
            linear(x, prepared, bias, None, residual)
            return rtsys.get_allocation_stats().alloc - before

    assert allocations(1) == allocations(7)


@pytest.mark.parametrize("kind", [np.float32, *LOW_PRECISION])
def test_same_bits_in_python_threads_and_forked_child(kind):
    x, weight, bias, residual = arguments(6, 130, 800, 97)
    _, prepared = both_weights(weight, kind)
    here = linear(x, prepared, bias, "gelu", residual)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: linear(x, prepared, bias, "gelu", residual), range(20)):
            np.testing.assert_array_equal(found, here)
    if not hasattr(os, "fork") or THREADING_LAYER == "omp":  # which ends forked children
        return
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if np.array_equal(linear(x, prepared, bias, "gelu", residual), here) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@every_kind
def test_nan_and_infinity_stay_in_their_row(kind):
    x, weight, bias, residual = arguments(10, 39, 51, 60, kind)
    x[17, 3], x[20, 50] = np.nan, np.inf
    x[30, :2] = 3e38, -3e38  # an ordinary row but for int8
    _, prepared = both_weights(weight, kind)
    output = linear(x, prepared, bias, None, residual)
    assert list(np.flatnonzero(~np.isfinite(output).all(axis=1))) == [17, 20] + [30] * (kind == "int8")
    assert np.isnan(output[17]).all()


@pytest.mark.parametrize("kind", [*NUMBA_DTYPES, "bfloat16"])
@QUICK
@given(rows=sizes(), in_features=sizes(), out_features=sizes(), layout=layouts(), seed=seeds())
def test_backward(kind, rows, in_features, out_features, layout, seed):
    x, weight, bias, grad = given_arrays = arguments(seed, rows, in_features, out_features, kind, layout)
    of_reference, prepared = both_weights(weight, kind)
    is_low = kind in LOW_PRECISION
    x, bias, grad = (it if is_low else it.astype(np.float64) for it in (x, bias, grad))
    exact = reference.linear_backward(grad, x, of_reference, bias, True, x.dtype)
    x, weight, bias, grad = given_arrays
    for given_weight in [prepared] if is_low else [weight, prepared]:
        found = linear_backward(grad, x, given_weight, bias, True, x.dtype)
        for name, one, other in zip(("grad_input", "grad_weight", "grad_bias"), found, exact, strict=True):
            assert one.dtype == x.dtype and one.flags.c_contiguous
            assert_close(one, other, name=name, factor=1 if is_low else 3, at_least=1)
    assert linear_backward(grad, x, prepared, None, True, x.dtype)[2] is None


@every_dtype
@pytest.mark.parametrize(
    ("rows", "in_features", "out_features"),
    [(CHUNK_ROWS + 1, 97, 2 * STRIP + 3), (2 * CHUNK_ROWS, 48, STRIP), (3, PART_COLUMNS + 5, 3 * PART // PART_COLUMNS)],
)
def test_weight_gradient_of_several_chunks_strips_and_parts(rows, in_features, out_features, dtype):
    x, weight, bias, grad = arguments(9, rows, in_features, out_features, dtype)
    found = linear_backward(grad, x, weight, bias, True, x.dtype)[1]
    assert_close(found, grad.T.astype(np.float64) @ x.astype(np.float64), factor=3, at_least=1)


def test_prepared_weight_is_packed_once_per_direction():
    x, weight, bias, grad = arguments(8, 5, 39, 17)
    prepared = prepare_weight(weight, None, None)
    linear_backward(grad, x, prepared, bias, True, x.dtype)
    panels = prepared.panels, prepared.transposed_panels()
    linear(x, prepared, bias, None, None)
    linear_backward(grad, x, prepared, bias, True, x.dtype)
    assert prepared.panels is panels[0] and prepared.transposed_panels() is panels[1]


@pytest.mark.parametrize("dtype", WIDENED)
@pytest.mark.parametrize("in_features", [1, 2, 39, BLOCK, BLOCK + 1, 2 * BLOCK + 38])
@pytest.mark.parametrize("rows", [1, 5, WIDENED_ROWS - 1, WIDENED_ROWS, WIDENED_ROWS + 5, 2 * BLOCK_ROWS + 7])
def test_widened_low_precision_equals_float32(rows, in_features, dtype):
    x, weight, bias, residual = arguments(12, rows, in_features, MANY_COLUMNS)
    low = kernels.prepare_weight(weight, dtype=dtype, backend="numba")
    wide = prepare_weight(low.to_array().astype(np.float32), None, None)
    found, expected = (linear(x, it, bias, "gelu", residual) for it in (low, wide))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not (has_pair_dot() and LEVEL.fma), reason="no pairs, or instructions of SSE that copy registers")
def test_sums_of_pairs_stay_in_registers():
    levels = types.Tuple((array(types.uint16, 2), array(types.int32, 1), array(types.float32, 1)))
    product_of_pairs, signature = product(run_int8, types.int8, levels, types.int32, levels=True)
    product_of_pairs.compile(signature)
    code = product_of_pairs.inspect_asm(product_of_pairs.signatures[0])
    added = re.findall(r"v?paddd\s.*", code)
    assert len(added) > 48 and sum("(%rsp)" in each for each in added) <= 4, added  # of 14 where they were spilled


@pytest.mark.parametrize("in_features", [1, 3, 39, 767, 4 * BLOCK - 1, 4 * BLOCK + 6])
@pytest.mark.parametrize("rows", [1, 7, WIDENED_ROWS, BLOCK_ROWS + 5])
def test_int8_equals_reference(rows, in_features):
    x, weight, bias, residual = arguments(8, rows, in_features, MANY_COLUMNS)
    x[0] *= np.float32(1e-41)  # too small a range for an inverse
    x[-1, 0] += 1000
    expected, prepared = both_weights(weight, "int8")
    np.testing.assert_array_equal(
        linear(x, prepared, bias, "relu", residual), reference.linear(x, expected, bias, "relu", residual)
    )


def test_largest_int8_sums_are_exact():
    in_features = MOST_INT8_FEATURES
    x, values = np.ones((2, in_features), np.float32), np.full((3, in_features), 127, np.int8)
    x[1] = -1
    values[1], values[2, ::2] = -127, -127
    scale = np.ones(3, np.float32)
    expected = reference.linear(x, reference.prepare_weight(values, scale, None), None, None, None)
    np.testing.assert_array_equal(linear(x, prepare_weight(values, scale, None), None, None, None), expected)
    assert expected[0, 0] > 0.99 * 127 * in_features
