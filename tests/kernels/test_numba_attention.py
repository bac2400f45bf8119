"""What is particular to attention on Numba: strided views, blocks, and bits that depend on the sequence alone."""

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import threads
from bertcore.kernels._numba import LEVEL, scores
from bertcore.kernels.attention import cpu, records, reference
from bertcore.kernels.attention import forward as kernel
from tests.kernels.attention_forms import backward, forward
from tests.kernels.forced_isa import FORCED, not_when_forced, run_tests_under
from tests.kernels.strategies import QUICK, normal, seeds
from tests.tolerances import assert_close

# A lesser CPU gets the dtype that makes its vectors most different: compiling is what takes the time here.
DTYPES = {"avx2": [np.float32], "generic": [np.float64]}.get(FORCED, [np.float32, np.float64])
DTYPE = DTYPES[0]
HEAD_DIMS = [1, 7, 39, 48, 64, 160]
QUERIES, KEYS = kernel.QUERY_BLOCK, kernel.KEY_BLOCK
GRADIENTS = ("grad_query", "grad_key", "grad_value", "grad_bias")
HEADS = 2


def packed(lengths, head_dim, dtype=DTYPE, seed=1):
    """query, key, value, grad_output as views (1, heads, tokens, head_dim) of one fused array, and the offsets."""
    fused = normal(seed, (sum(lengths), 4, HEADS, head_dim), dtype)
    fused.flags.writeable = False
    arrays = [fused[:, i].transpose(1, 0, 2)[None] for i in range(4)]
    return arrays, np.array([0, *accumulate(lengths)], np.int32)


def masks(kind, shape, dtype, seed=5):
    """(attn_mask, bias) as broadcast views of `shape`."""
    own = {"keys": (shape[0], 1, 1, shape[3]), "heads": (1, shape[1], *shape[2:]), "all": shape}.get(kind)
    if own is None:
        return None, None
    mask = normal(seed, own) < 1
    return np.broadcast_to(mask, shape), np.broadcast_to(normal(seed + 1, own, dtype), shape)


def exact(arrays, offsets, mask, bias, is_causal, scale):
    """Everything by the reference in float64: output, lse, probabilities, gradients."""
    query, key, value, grad = (array.astype(np.float64) for array in arrays)
    bias = None if bias is None else np.broadcast_to(reference.unbroadcast(bias).astype(np.float64), bias.shape)
    options = (offsets, offsets, mask, bias, is_causal, scale)
    output, lse, probs = forward(reference, query, key, value, *options, True, None)
    return output, lse, probs, *backward(reference, grad, query, key, value, output, lse, *options)


def computed(arrays, offsets, mask, bias, is_causal, scale):
    query, key, value, grad = arrays
    options = (offsets, offsets, mask, bias, is_causal, scale)
    output, lse, probs = forward(cpu, query, key, value, *options, True, None)
    return output, lse, probs, *backward(cpu, grad, query, key, value, output, lse, *options)


def check(arrays, offsets, mask, bias, is_causal, scale):
    found = computed(arrays, offsets, mask, bias, is_causal, scale)
    expected = exact(arrays, offsets, mask, bias, is_causal, scale)
    for name, one, other in zip(("output", "lse", "probs", *GRADIENTS), found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert_close(one, other, name=name, factor=3, at_least=1)


@QUICK
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 3, 7, 17, 39, 130]), min_size=1, max_size=4),
    head_dim=st.sampled_from(HEAD_DIMS), dtype=st.sampled_from(DTYPES), is_causal=st.booleans(),
    kind=st.sampled_from([None, "keys", "heads", "all"]), seed=seeds(),
)  # fmt: skip
def test_packed(lengths, head_dim, dtype, is_causal, kind, seed):
    arrays, offsets = packed(lengths, head_dim, dtype, seed)
    shape = (len(lengths), HEADS, max(lengths), max(lengths))
    check(arrays, offsets, *masks(kind, shape, dtype, seed), is_causal, 0.3)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [[700, 3, 300, 129, 226], [QUERIES, QUERIES + 1, QUERIES - 1], [2100]])
def test_more_than_one_block(lengths, is_causal):
    """Sequences shorter than the longest take more rows at once: the scratch must hold those, too."""
    arrays, offsets = packed(lengths, 24)
    check(arrays, offsets, None, None, is_causal, 0.2)


@pytest.mark.parametrize("kind", [None, "heads"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("keys", [KEYS - 1, KEYS, KEYS + 1, 2 * KEYS + 3, 1009])
def test_block_borders_between_unequal_lengths(keys, is_causal, kind):
    """Queries and keys of different lengths; the highest score is in the last block, where all before is rescaled."""
    lengths, lengths_k = [QUERIES + 1, 3, 40], [keys, 1, 0]
    (query, *_), offsets = packed(lengths, 16)
    (_, key, value, _), offsets_k = packed(lengths_k, 16, seed=2)
    key, query = key * np.linspace(0.1, 4, key.shape[2], dtype=DTYPE)[:, None], query.copy()
    mask, bias = masks(kind, (3, HEADS, QUERIES + 1, keys), DTYPE)
    options = (offsets, offsets_k, mask, bias, is_causal, 0.3, True, None)
    found = forward(cpu, query, key, value, *options)
    wide = [array.astype(np.float64) for array in (query, key, value)]
    bias = None if bias is None else bias.astype(np.float64)
    expected = forward(reference, *wide, *options[:3], bias, *options[4:])
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        assert_close(one, other, name=name, factor=3, at_least=1)


@pytest.mark.parametrize("where", [0, KEYS - 1, KEYS, 2 * KEYS])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_special_score_in_any_block(where, special):
    query, key, value = (normal(seed, (1, 1, length, 8), DTYPE) for seed, length in ((1, 3), (2, 520), (3, 520)))
    bias = np.zeros((1, 1, 3, 520), DTYPE)
    bias[0, 0, 1, where] = special
    found = forward(cpu, query, key, value, None, None, None, bias, False, 0.3, True, None)
    with np.errstate(invalid="ignore"):
        expected = forward(reference, query, key, value, None, None, None, bias, False, 0.3, True, None)
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        assert_close(one, other, name=name, factor=3, at_least=1)


def test_what_a_task_needs_is_bounded():
    """Enough for head_dim 64 in 1/2 MB (float32), of which half a second-level cache is left to others."""
    assert kernel.scratch_size(QUERIES, KEYS, 64, None, np.float32(0)) < 2**17


@pytest.mark.skipif(np.float32 not in DTYPES, reason="bfloat16 is for float32 arrays")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", [None, "heads"])
@pytest.mark.parametrize("head_dim", [1, 39, 64])
def test_bfloat16(head_dim, kind, is_causal):
    lengths = [1, 2, 39, 0, KEYS + 45]
    arrays, offsets = packed(lengths, head_dim, np.float32)
    options = (*masks(kind, (5, HEADS, KEYS + 45, KEYS + 45), np.float32), is_causal, 0.3, True, "bfloat16")
    found = forward(cpu, *arrays[:3], offsets, offsets, *options)
    expected = forward(reference, *arrays[:3], offsets, offsets, *options)
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        # Exponentials are rounded against the highest score so far, of the last block against the highest of all.
        assert_close(one, other, name=name, factor=1000 if name == "output" else 3, at_least=1)
    few = slice(0, 42)  # one block: all is rounded as the reference does, but for exponentials halfway between two
    error = np.abs(found[0][:, :, few] - expected[0][:, :, few])
    assert np.quantile(error, 0.9) < 1e-6


@pytest.mark.skipif(np.float32 not in DTYPES, reason="bfloat16 is for float32 arrays")
def test_bfloat16_has_the_same_bits_alone_and_in_any_batch():
    lengths = [5, 39, 300, 1, 33]
    arrays, offsets = packed(lengths, 39, np.float32)
    options = (None, None, False, 0.2, False, "bfloat16")
    whole, *_ = forward(cpu, *arrays[:3], offsets, offsets, *options)
    for sequence, length in enumerate(lengths):
        rows, own = slice(offsets[sequence], offsets[sequence + 1]), np.array([0, length], np.int32)
        for first in (0, length // 2):  # fewer queries of the same keys, too
            queries = np.array([0, length - first], np.int32)
            query = arrays[0][:, :, rows][:, :, first:]
            alone, *_ = forward(cpu, query, *(a[:, :, rows] for a in arrays[1:3]), queries, own, *options)
            np.testing.assert_array_equal(alone, whole[:, :, rows][:, :, first:])


def test_rows_at_once_fit_their_scratch():
    sizes = range(0, 30_000, 16)
    for longest in (*range(0, 3000, 16), 30_000):
        room = scores.scores_size.py_func(longest)
        needed = (scores.rows_at_once.py_func(row) * row for row in sizes if row <= longest)
        assert max(needed, default=0) <= room


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_alone_in_any_batch_and_padded(dtype):
    lengths = [5, 39, 300, 1, 160]
    arrays, offsets = packed(lengths, 39, dtype)
    whole = computed(arrays, offsets, None, None, False, 0.2)
    for sequence, length in enumerate(lengths):
        rows = slice(offsets[sequence], offsets[sequence + 1])
        own = [array[:, :, rows] for array in arrays]
        alone = computed(own, np.array([0, length], np.int32), None, None, False, 0.2)
        some = own[0][:, :, length // 2 :], *own[1:3]  # fewer queries of the same keys
        counts = np.array([0, length - length // 2], np.int32), np.array([0, length], np.int32)
        for found, index in zip(
            forward(cpu, *some, *counts, None, None, False, 0.2, False, None), (0, 1), strict=False
        ):
            np.testing.assert_array_equal(found, alone[index][:, :, length // 2 :])
        for index in (0, 1, 3, 4, 5):
            np.testing.assert_array_equal(alone[index], whole[index][:, :, rows])
        padding = ((0, 0), (0, 0), (0, 23), (0, 0))
        visible = np.broadcast_to(np.arange(length + 23) < length, (1, HEADS, length + 23, length + 23))
        padded = forward(
            cpu, *(np.pad(array, padding) for array in own[:3]), None, None, visible, None, False, 0.2, False, None
        )
        np.testing.assert_array_equal(padded[0][:, :, :length], alone[0])
        np.testing.assert_array_equal(padded[1][:, :, :length], alone[1])


@pytest.mark.parametrize("kind", [None, "heads"])
def test_the_number_of_threads_does_not_change_the_bits(monkeypatch, kind):
    arrays, offsets = packed([300, 5, 600], 20)
    options = (*masks(kind, (3, HEADS, 600, 600), DTYPE), False, 0.2)
    expected = computed(arrays, offsets, *options)
    for count in (1, 2, 3, 5):
        monkeypatch.setattr(threads, "_chosen", threads.ThreadCount(count, "test"))
        for found, wanted in zip(computed(arrays, offsets, *options), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_several_python_threads_at_once():
    arrays, offsets = packed([39, 5, 160], 20)
    expected = computed(arrays, offsets, None, None, True, 0.2)
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: computed(arrays, offsets, None, None, True, 0.2), range(40)):
            for found, wanted in zip(results[:6], expected[:6], strict=True):
                np.testing.assert_array_equal(found, wanted)


def test_views_are_not_copied_and_need_no_further_specialisation():
    arrays, offsets = packed([39, 5], 20)
    for array in arrays:
        assert records.addressed(array) is array
    forward(cpu, *arrays[:3], offsets, offsets, None, None, False, 0.2, False, None)
    before = len(kernel.forward.signatures)
    dense = [np.array(array) for array in arrays[:3]]
    mask, bias = masks("keys", (1, HEADS, 44, 44), DTYPE)
    forward(cpu, *dense, None, None, mask, bias, True, 0.2, True, None)
    assert len(kernel.forward.signatures) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_that_see_nothing(dtype):
    arrays, offsets = packed([39], 16, dtype)
    mask = np.ones((1, HEADS, 39, 39), bool)
    mask[:, :, [0, 17, 38]] = False
    output, lse, probs, *gradients = computed(arrays, offsets, mask, None, False, 0.2)
    blind = (0, slice(None), [0, 17, 38])
    assert not output[blind].any() and not probs[blind].any() and not gradients[0][blind].any()
    assert np.all(lse[blind] == (-np.inf, 0))
    assert all(np.isfinite(gradient).all() for gradient in gradients[:3])


@pytest.mark.parametrize("where", ["no keys", "no queries", "no head_dim"])
def test_empty_sides(where):
    queries, keys, head_dim = {"no keys": (5, 0, 4), "no queries": (0, 5, 4), "no head_dim": (5, 7, 0)}[where]
    query, key = np.ones((2, HEADS, queries, head_dim), DTYPE), np.ones((2, HEADS, keys, head_dim), DTYPE)
    options = (None, None, None, None, False, 1.0)
    output, lse, probs = forward(cpu, query, key, key, *options, True, None)
    assert output.shape == query.shape and not output.any() and probs.shape == (2, HEADS, queries, keys)
    if where == "no head_dim":
        np.testing.assert_allclose(lse[..., 1], np.log(7), rtol=1e-6)
    elif where == "no keys":
        assert np.all(lse == (-np.inf, 0))
    gradients = backward(cpu, output, query, key, key, output, lse, *options)
    for gradient, array in zip(gradients, (query, key, key), strict=False):
        assert gradient.shape == array.shape and not gradient.any()


@not_when_forced
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_everything_again_on_a_lesser_cpu(isa):
    run_tests_under(isa, __file__)


def test_the_forced_isa_is_in_force():
    assert not FORCED or LEVEL.name == FORCED


@not_when_forced
@pytest.mark.slow
def test_bfloat16_without_its_instruction():
    run_tests_under("avx512", __file__, "-k", "bfloat16 or forced")
