"""Large batches are encoded group by group: the same bits, every sequence once, memory bounded by a group."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from bertcore import AutoModel, use_backend
from bertcore.execution import eager
from bertcore.kernels._numba import memory as arena
from bertcore.models.inputs import EncoderInput
from bertcore.passes import Pass

CONFIG = {
    "model_type": "bert", "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96,
    "vocab_size": 100,
}  # fmt: skip
LENGTHS = [0, 5, 1, 31, 0, 0, 64, 2, 17, 3, 1, 1, 40, 0]


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_config(CONFIG)


def batch(lengths):
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(int)
    return rng.integers(0, 100, mask.shape), mask


def packed_input(lengths):
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = np.arange(cu_seqlens[-1])
    used = np.array(lengths) > 0
    return EncoderInput(tokens, tokens, tokens, cu_seqlens, cu_seqlens[:-1][used], cu_seqlens[1:][used] - 1)


@pytest.mark.parametrize("tokens", [1, 7, 50, 81, 110, 1000])
def test_every_token_is_in_one_group(tokens):
    whole = packed_input(LENGTHS)
    groups = list(whole.groups(tokens))
    np.testing.assert_array_equal(np.concatenate([group.input_ids for group in groups]), whole.input_ids)
    lengths = np.concatenate([np.diff(group.cu_seqlens) for group in groups])
    assert list(lengths[lengths > 0]) == [length for length in LENGTHS if length]
    for group in groups:
        assert group.cu_seqlens[0] == 0 and group.cu_seqlens[-1] == len(group.input_ids) == len(group.position_ids)
        np.testing.assert_array_equal(group.first_tokens, group.cu_seqlens[:-1][np.diff(group.cu_seqlens) > 0])
        assert len(group.input_ids) <= 1.5 * tokens + max(LENGTHS)
    assert (len(groups) > 1) == (round(sum(LENGTHS) / tokens) > 1)


@pytest.mark.parametrize("lengths", [[0], [0, 0], [3]])
def test_a_small_batch_is_one_group(lengths):
    whole = packed_input(lengths)
    (group,) = whole.groups(1000)
    assert group is whole


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))]
)
def test_groups_do_not_change_a_bit(dtype, monkeypatch):
    model, (ids, mask) = AutoModel.from_config(CONFIG, dtype=dtype), batch(LENGTHS)
    with use_backend("numba"):
        whole = model(ids, mask)
        monkeypatch.setattr(eager, "GROUP_TOKENS", 30)
        parts = model(ids, mask)
    np.testing.assert_array_equal(parts.last_hidden_state, whole.last_hidden_state)
    np.testing.assert_array_equal(parts.pooler_output, whole.pooler_output)


def test_memory_is_bounded_by_a_group(model, monkeypatch):
    monkeypatch.setattr(arena, "LEAST", 1 << 60)  # what the arena lends is not traced
    ids, mask = batch([64] * 64)

    def peak(tokens):
        monkeypatch.setattr(eager, "GROUP_TOKENS", tokens)
        model(ids, mask)
        tracemalloc.start()
        try:
            model(ids, mask)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(256) < 0.5 * peak(1 << 20)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_replaced_weights_count_at_once_and_old_ones_go(dtype):
    ids, mask = batch([7, 3])
    model, other = AutoModel.from_config(CONFIG, dtype=dtype), AutoModel.from_config(CONFIG, dtype=dtype, seed=1)
    with use_backend("numba"):
        for _ in range(3):
            model(ids, mask), other(ids, mask)
        old = weakref.ref(model.encoder.layers[0].feed_forward.expand.weight.weight(Pass.begin()).panels)
        model.load_state_dict(other.state_dict())
        for _ in range(4):
            found, expected = (each(ids, mask).last_hidden_state for each in (model, other))
            np.testing.assert_array_equal(found, expected, strict=True)
    gc.collect()
    assert old() is None


def test_results_belong_to_the_caller(model):
    ids, mask = batch([7, 3])
    expected = model(ids, mask).last_hidden_state.copy()
    for _ in range(4):
        out = model(ids, mask)
        np.testing.assert_array_equal(out.last_hidden_state, expected)
        out.last_hidden_state[...] = np.nan
