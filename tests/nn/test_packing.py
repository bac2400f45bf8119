"""Padding is stripped and restored exactly, wherever it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bertcore.nn.packing import PackedBatch
from bertcore.passes import Pass
from bertcore.tape import Tape

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
