"""Layouts of packed batches, and packing itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bertcore import kernels
from bertcore.checkpoint import NameRules, load_parameters, open_checkpoint, save_checkpoint
from bertcore.nn.forms import storage_dtype
from bertcore.nn.layout import JoinedTensors, Layout
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass
from bertcore.tape import Tape

RNG = np.random.default_rng(0)
LAYOUTS = {
    "transposed": Layout.transposed(7, 5),
    "heads of an input map": Layout((5, 3, 2), axes=(1, 2, 0), row_axes=2),
    "heads of an output map": Layout((5, 3, 2), axes=(0, 1, 2), row_axes=1),
    "experts' output maps": Layout((6, 5), axes=(0, 2, 1), row_axes=2, split=(2, 3, 5)),
    "vectors of heads": Layout((3, 2), axes=(0, 1), row_axes=2),
    "no rows": Layout.transposed(0, 5),
    "no columns": Layout.transposed(7, 0),
}
MATRICES = [name for name, layout in LAYOUTS.items() if layout.row_axes < len(layout.axes) and 0 not in layout.shape]
NAMES = ("query.weight", "key.weight")


@pytest.mark.parametrize(
    ("second", "expected"), [("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_tensors_of_several_dtypes_are_joined_in_one_that_holds_all(second, expected):
    values = dict(zip(NAMES, RNG.normal(size=(2, 3, 5)), strict=True))
    dtypes = dict(zip(NAMES, ("float16", second), strict=True))
    stored = {name: array.astype(storage_dtype(dtypes[name])) for name, array in values.items()}
    array, _ = JoinedTensors(NAMES, (3, 5), None).joined(stored)
    assert array.dtype == expected
    np.testing.assert_array_equal(array, np.concatenate([stored[name].astype(expected) for name in NAMES]))


def test_int8_tensors_of_different_input_scales_are_joined_as_floats():
    values = {name: RNG.integers(-127, 128, (3, 5)).astype(np.int8) for name in NAMES}
    scales = {f"{name}_scale": np.full((3, 1), 0.5, np.float32) for name in NAMES}
    of_inputs = {f"{name}_input_scale": np.full(5, 1 + i, np.float32) for i, name in enumerate(NAMES)}
    joined = JoinedTensors(NAMES, (3, 5), None)
    array, found = joined.joined(values | scales | of_inputs)
    assert found is None
    np.testing.assert_array_equal(array, np.concatenate([values[NAMES[0]] * 0.5, values[NAMES[1]] * 1.0]))
    of_inputs[f"{NAMES[1]}_input_scale"] = of_inputs[f"{NAMES[0]}_input_scale"]
    array, found = joined.joined(values | scales | of_inputs)
    assert array.dtype == np.int8 and found.rows.tolist() == [0.5] * 6 and found.input.tolist() == [1] * 5


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_there_and_back(layout):
    stored = RNG.normal(size=layout.shape)
    array = layout.to_computing(stored)
    assert array.shape == layout.computing_shape
    np.testing.assert_array_equal(layout.to_stored(array), stored)


def test_what_it_computes():
    """XLNet's maps, as einsum has them: hidden (tokens, width) to (tokens, heads, head_dim), and back."""
    hidden, stored = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3, 2))
    heads = np.einsum("ih,hnd->ind", hidden, stored)
    weight = LAYOUTS["heads of an input map"].to_computing(stored)
    np.testing.assert_allclose(hidden @ weight.T, heads.reshape(4, 6))
    weight = LAYOUTS["heads of an output map"].to_computing(stored)
    np.testing.assert_allclose(heads.reshape(4, 6) @ weight.T, np.einsum("ind,hnd->ih", heads, stored))


def filled(layout, arrays, dtype="float32"):
    parameter = Parameter(*NAMES, use="weight", layout=layout)
    parameter.fill(arrays, dtype)
    return parameter


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow), "bfloat16"])
def test_users_see_the_checkpoints_names_and_shapes(cpu_backend, name, dtype):
    layout = LAYOUTS[name]
    arrays = {name: RNG.normal(size=layout.shape).astype(np.float32).astype(storage_dtype(dtype)) for name in NAMES}
    parameter = filled(layout, arrays, dtype)
    joined = np.concatenate([layout.to_computing(arrays[name]) for name in NAMES])
    np.testing.assert_array_equal(parameter.array(), joined)
    hidden = RNG.normal(size=(4, joined.shape[1])).astype("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(
        kernels.linear(hidden, parameter.weight(Pass.begin())), hidden @ joined.astype(hidden.dtype).T, atol=0.1
    )
    assert parameter.expected == dict.fromkeys(NAMES, layout.shape)
    for name, part in parameter.parts(parameter.array()):
        np.testing.assert_array_equal(part, arrays[name])


@pytest.mark.parametrize("name", MATRICES)
def test_int8_has_a_scale_for_each_output(cpu_backend, name, tmp_path):
    layout = LAYOUTS[name]
    floats = {name: RNG.normal(size=layout.shape).astype(np.float32) for name in NAMES}
    parameter = filled(layout, floats, "int8")
    tensors = dict(parameter.tensors())
    for name, array in floats.items():
        values, scale = kernels.quantize_weight(layout.to_computing(array))
        np.testing.assert_array_equal(layout.to_computing(tensors[name]), values)
        assert tensors[name + "_scale"].shape == layout.scale_shape == parameter.expected_scales(grouped=False)[name]
        np.testing.assert_array_equal(tensors[name + "_scale"].ravel(), scale)
        assert np.abs(values * scale[:, None] - layout.to_computing(array)).max() <= scale.max() / 2 * 1.001
    save_checkpoint(tmp_path, {}, tensors)
    rules, scales = NameRules("", anchor=NAMES[0]), parameter.expected_scales(grouped=False)
    again = load_parameters(open_checkpoint(tmp_path), parameter.expected, rules, scales=scales)
    for name, array in filled(layout, again, "int8").tensors():
        np.testing.assert_array_equal(array, tensors[name])
    with pytest.raises(ValueError, match="expected"):
        wrong = {name: (*shape, 1) for name, shape in scales.items()}
        load_parameters(open_checkpoint(tmp_path), parameter.expected, rules, scales=wrong)


def test_gradients_are_of_the_checkpoints_shape():
    layout = LAYOUTS["heads of an input map"]
    parameter = filled(layout, {name: RNG.normal(size=layout.shape) for name in NAMES}, "float64")
    with Tape() as tape, kernels.use_backend("numpy"):
        value = parameter.value(Pass.begin())
    gradient = RNG.normal(size=parameter.shape)
    parts = dict(parameter.parts(tape.gradients(value, gradient)[parameter]))
    assert [part.shape for part in parts.values()] == [layout.shape] * 2
    np.testing.assert_array_equal(parts["key.weight"][1, 2, 1], gradient[math.prod((3, 2)) + 2 * 2 + 1, 1])


masks = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9))


@given(masks, st.integers(1, 4))
def test_strip_then_pad_restores_real_tokens_and_zeroes_the_rest(mask, features):
    padded = np.random.default_rng(0).standard_normal((*mask.shape, features))
    packed = PackedBatch(mask)
    np.testing.assert_array_equal(packed.pad(Pass.begin(), packed.strip(padded)), np.where(mask[..., None], padded, 0))


@given(masks)
def test_cu_seqlens_and_first_tokens_delimit_the_sequences(mask):
    packed = PackedBatch(mask)
    assert packed.cu_seqlens.dtype == np.int32
    np.testing.assert_array_equal(np.diff(packed.cu_seqlens), mask.sum(axis=1))
    np.testing.assert_array_equal(packed.strip(np.cumsum(mask, axis=1))[packed.first_tokens()], 1)


@pytest.mark.parametrize(
    ("row", "positions"),
    [("1110", [0, 1, 2]), ("0111", [0, 1, 2]), ("1111", [0, 1, 2, 3]), ("0101", [0, 2]), ("0000", [])],
)
def test_positions_count_from_the_first_real_token(row, positions):
    packed = PackedBatch(np.array([[mark == "1" for mark in row]]))
    assert packed.position_ids.tolist() == positions


@given(masks)
def test_attention_is_padded_to_the_columns_of_the_mask(mask):
    packed = PackedBatch(mask)
    longest = int(packed.lengths.max(initial=0))
    probabilities = np.random.default_rng(0).random((mask.shape[0], 2, longest, longest))
    padded = packed.pad_attention(Pass.begin(), probabilities)
    assert padded.shape == (mask.shape[0], 2, mask.shape[1], mask.shape[1])
    for index, row in enumerate(mask):
        count = int(row.sum())
        np.testing.assert_array_equal(padded[index][:, row][:, :, row], probabilities[index, :, :count, :count])
        assert padded[index].sum() == pytest.approx(probabilities[index, :, :count, :count].sum())


@given(masks)
def test_sequences_without_tokens_get_zero_rows(mask):
    packed = PackedBatch(mask)
    pooled = np.ones((int(packed.has_tokens.sum()), 3))
    np.testing.assert_array_equal(
        packed.pad_sequences(Pass.begin(), pooled), np.repeat(packed.has_tokens[:, None], 3, axis=1)
    )


@given(masks, st.booleans(), st.integers(0, 3))
def test_what_is_padded_has_the_gradient_of_its_real_part(mask, keeps_all, memory):
    """<pad(x), g> = <x, pullback(g)>: padding is linear. Padding that stays as tokens gets zeros."""
    rng = np.random.default_rng(0)
    packed = PackedBatch(np.ones_like(mask), mask) if keeps_all else PackedBatch(mask)
    sequences, tokens, longest = mask.shape[0], int(packed.lengths.sum()), int(packed.lengths.max(initial=0))
    for pad, shape in (
        (packed.pad, (tokens, 3)),
        (packed.pad_sequences, (int(packed.has_tokens.sum()), 3)),
        (lambda run, array: packed.pad_attention(run, array, memory), (sequences, 2, longest, memory + longest)),
    ):
        array = rng.standard_normal(shape)
        with Tape() as tape:
            leaf = tape.leaf("x", array)
            padded = pad(Pass.begin(), leaf)
        if padded is leaf:
            continue
        np.testing.assert_array_equal(padded.value, pad(Pass.begin(), array))
        seed = rng.standard_normal(padded.value.shape)
        gradient = tape.gradients(padded, seed)["x"]
        assert gradient.shape == shape
        assert (padded.value * seed).sum() == pytest.approx((array * gradient).sum(), rel=1e-9, abs=1e-9)
