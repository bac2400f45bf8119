"""linear: prepared weights in low precision; conformance/ has the rest."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from bertcore import kernels
from bertcore.kernels.linear import reference
from tests.kernels import oracles
from tests.kernels.arrays import backward
from tests.kernels.strategies import QUICK, normal, seeds, sizes
from tests.refusals import refuses
from tests.tolerances import assert_close, assert_same_arrays

SIZES = [(5, 7, 3), (1, 39, 160), (13, 1, 1), (0, 4, 5), (3, 0, 5), (3, 4, 0)]  # rows, in_features, out_features


def arguments(seed, rows, in_features, out_features, dtype=np.float64, layout="contiguous"):
    """input, weight, bias, residual, grad_output."""
    return (
        normal(seed, (rows, in_features), dtype, layout),
        normal(seed + 1, (out_features, in_features), dtype, layout, scale=0.3),
        normal(seed + 2, (out_features,), dtype, layout),
        normal(seed + 3, (rows, out_features), dtype, layout),
        normal(seed + 4, (rows, out_features), dtype, layout),
    )


def test_a_prepared_weight_is_a_copy():
    x, weight, bias, residual, grad = arguments(4, 5, 7, 3)
    prepared = reference.prepare_weight(weight, None, None)
    assert (prepared.out_features, prepared.in_features, prepared.dtype) == (3, 7, np.float64)
    expected = reference.linear(x, weight, bias, None, residual)
    expected_gradients = reference.linear_backward(grad, x, weight, bias, True, x.dtype)
    original = weight.copy()
    weight[:] = np.nan
    np.testing.assert_array_equal(prepared.to_array(), original)
    prepared.to_array()[:] = np.nan
    np.testing.assert_array_equal(reference.linear(x, prepared, bias, None, residual), expected)
    gradients = reference.linear_backward(grad, x, prepared, bias, True, x.dtype)
    assert_same_arrays(gradients, expected_gradients)


def test_gradients_over_many_rows_keep_their_digits(cpu_backend):
    grad, x = np.full((100_000, 2), 0.1, np.float32), np.ones((100_000, 1), np.float32)
    _, grad_weight, grad_bias = backward("linear", grad, x, np.ones((2, 1), np.float32), np.ones(2, np.float32))
    exact = 100_000 * np.float64(np.float32(0.1))
    assert_close(grad_bias, np.full(2, exact))
    if cpu_backend == "numba":  # NumPy's is BLAS's
        assert_close(grad_weight, np.full((2, 1), exact), factor=10)


def test_the_definition_of_frozen_weights_and_of_sums():
    x, weight, bias, _, grad = arguments(7, 5, 7, 3)
    given = grad, x, weight, bias
    whole, frozen = (backward("linear", *given, needs_weight=needs, backend="numpy") for needs in (True, False))
    assert_same_arrays(frozen[::2], whole[::2])
    total = weight.copy()
    assert kernels.linear_weight_gradient(grad, x, add_to=total, backend="numpy") is total
    assert_close(total, weight + whole[1])


def rows_of_all_kinds():
    """float32 rows: ordinary, all equal, zero, one-sided, with an outlier, tiny, of opposite extremes."""
    x = normal(7, (9, 39), np.float32)
    x[1], x[2], x[3], x[4] = 2.5, 0, np.abs(x[3]), -np.abs(x[4])
    x[5, 0] = 1e4
    x[6] *= np.float32(1e-30)
    x[7, :2] = 1.5e38, -1.5e38
    x[8] = 1e-42
    return x


def test_quantized_rows():
    x = rows_of_all_kinds()
    with np.errstate(all="raise"):
        levels, zero, step = reference.quantize_rows(x)
    assert levels.dtype == zero.dtype == step.dtype == np.float32
    for integers in (levels, zero):
        assert (integers == np.rint(integers)).all() and integers.min() >= 0 and integers.max() <= 255
    error = np.abs((levels.astype(np.float64) - zero) * step - x)
    assert (error[:8] <= 0.5001 * step[:8]).all()
    assert (error[8] <= 2e-42).all()  # a row too small for an inverse is zero
    assert ((levels == zero) | (x != 0)).all()


@given(seed=seeds(), rows=sizes(), columns=sizes())
@QUICK
def test_levels_stay_in_a_byte(seed, rows, columns):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-30, 30, (rows, 1))).astype(np.float32)
    levels, _, step = reference.quantize_rows(x)
    assert levels.size == 0 or (levels.min() >= 0 and levels.max() <= 255 and np.isfinite(step).all())


@pytest.mark.parametrize("columns", [0, 1, 31, 32, 33, 97])
@pytest.mark.parametrize("per_group", [False, True])
def test_a_quantized_weight(columns, per_group):
    weight, width = normal(8, (6, columns), np.float32), 32 if per_group else max(columns, 1)
    weight[1], weight[2], weight[3, :1] = 0, 1e-44, 1e5
    with np.errstate(all="raise"):
        values, scale = kernels.quantize_weight(weight, per_group=per_group)
    assert values.dtype == np.int8 and scale.dtype == (ml_dtypes.bfloat16 if per_group else np.float32)
    assert scale.shape == ((6, -(-columns // 32)) if per_group else (6,))
    assert values.shape == weight.shape and not values[1].any()
    for group, step in enumerate(scale.astype(np.float32).reshape(6, -1).T[:, :, None]):
        own = slice(None), slice(width * group, width * (group + 1))
        peaks = np.abs(weight[own]).max(axis=1, initial=0)
        np.testing.assert_allclose(step[peaks > 1, 0] * 127, peaks[peaks > 1], rtol=2**-8)  # half a digit of bfloat16
        assert (np.abs(values[own] * step - weight[own]) <= 0.5001 * step + 1e-44).all()


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_weight_quantized_in_groups_is_for_inference_in_float32(backend):
    x, weight, _, _, grad = arguments(9, 7, 97, 53, dtype=np.float32)
    prepared = kernels.prepare_weight(weight, dtype="int8_weight_only", backend=backend)
    same = kernels.prepare_weight(*kernels.quantize_weight(weight, per_group=True), backend=backend)
    for one, other in ((prepared.integers(), same.integers()), (prepared.scale, same.scale)):
        np.testing.assert_array_equal(one, other)
    assert prepared.is_grouped and prepared.dtype == np.int8 and not prepared.scale.flags.writeable
    refuses(TypeError, "which has no gradients", backward, "linear", grad, x, prepared)
    refuses(TypeError, "input has dtype float64, expected float32", kernels.linear, x.astype(np.float64), prepared)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_columns_of_the_input_are_scaled_before_they_are_rounded(backend):
    x, weight, bias, residual, _ = arguments(9, 7, 39, 11, dtype=np.float32)
    x[:, 5] *= 500
    values, scale = kernels.quantize_weight(weight)
    factors = (np.exp2(-np.arange(39) % 7) / 3).astype(np.float32)
    prepared = kernels.prepare_weight(values, scale, factors, backend=backend)
    found = kernels.linear(x, prepared, bias, activation="relu", residual=residual)
    plain = kernels.prepare_weight(values, scale, backend=backend)
    np.testing.assert_array_equal(found, kernels.linear(x * factors, plain, bias, activation="relu", residual=residual))
    np.testing.assert_array_equal(prepared.to_array(), values * scale[:, None] * factors)
    np.testing.assert_array_equal(prepared.input_scale, factors)
    assert not prepared.input_scale.flags.writeable and plain.input_scale is None


def rounded(x, kind):
    """The rows that are multiplied by a weight of this kind."""
    if kind == "int8":
        levels, zero, step = (array.astype(np.float64) for array in reference.quantize_rows(x))
        return (levels - zero) * step
    return x.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else x


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("size", [*SIZES, (7, 97, 53)])
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int8_weight_only"])
def test_low_precision_is_the_product_of_what_was_rounded(kind, size, activation):
    x, weight, bias, residual, _ = arguments(9, *size, dtype=np.float32)
    prepared = kernels.prepare_weight(weight, dtype=kind, backend="numpy")
    if kind == "bfloat16":
        stands_for = weight.astype(ml_dtypes.bfloat16)
    else:
        values, scale = kernels.quantize_weight(weight, per_group=kind == "int8_weight_only")
        scale = scale[:, None] if scale.ndim == 1 else np.repeat(scale.astype(np.float32), 32, axis=1)[:, : size[1]]
        stands_for = values * scale
    np.testing.assert_array_equal(prepared.to_array(), stands_for)
    expected = oracles.linear(
        *(it.astype(np.float64) for it in (rounded(x, kind), stands_for)), bias, activation, residual
    )
    with np.errstate(all="raise"):
        found = kernels.linear(x, prepared, bias, activation=activation, residual=residual, backend="numpy")
    assert found.dtype == np.float32
    assert_close(found, expected)


@pytest.mark.parametrize("size", [*SIZES, (67, 70, 131), (64, 131, 70)])
def test_gradients_in_bfloat16_are_those_of_what_was_rounded(size):
    x, weight, bias, _, grad = arguments(11, *size, dtype=np.float32)
    low = [it.astype(ml_dtypes.bfloat16).astype(np.float64) for it in (grad, x, weight)]
    expected = reference.linear_backward(*low, None, True, np.float64)
    prepared = kernels.prepare_weight(weight, dtype="bfloat16", backend="numpy")
    found = backward("linear", grad, x, prepared, bias)
    for one, other in zip(found, (*expected[:2], grad.sum(axis=0, dtype=np.float64)), strict=True):
        assert one.dtype == np.float32
        assert_close(one, other, at_least=1)
    assert backward("linear", grad, x, prepared, needs_weight=False)[1:] == (None, None)


def test_a_weight_is_rounded_to_nearest_even_denormals_and_halves_too():
    weight = normal(4, (67, 131), np.float32)
    weight[0, :8] = 1e-45, -3e-40, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -0.0
    rounded = kernels.prepare_weight(weight, dtype="bfloat16", backend="numba").to_array()
    assert rounded.tobytes() == weight.astype(ml_dtypes.bfloat16).tobytes()
    weight[5, 5] = np.nan
    assert np.isnan(kernels.prepare_weight(weight, dtype="bfloat16", backend="numba").to_array().astype(float)[5, 5])


def test_a_row_that_int8_cannot_stand_for_is_nan_and_no_other():
    x = rows_of_all_kinds()
    x[0, 3], x[2, 1], x[4, :2] = np.nan, np.inf, (3e38, -3e38)
    prepared = reference.prepare_weight(*kernels.quantize_weight(normal(11, (7, 39), np.float32)), None)
    output = reference.linear(x, prepared, None, None, None)
    assert list(np.flatnonzero(np.isnan(output).any(axis=1))) == [0, 2, 4]
    assert np.isnan(output[[0, 2, 4]]).all()
