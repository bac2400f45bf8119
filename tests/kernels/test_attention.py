"""attention/reference.py against a naive oracle, finite differences, itself in float64, and PyTorch."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import attention
from bertcore.kernels.attention import reference
from tests.kernels import oracles
from tests.kernels.attention_forms import backward, forward
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import QUICK, dtypes, layouts, normal, seeds
from tests.tolerances import assert_close

# Query lengths and key lengths of the sequences; dense cases have them all equal.
PACKED = {
    "one": ([7], [7]),
    "ragged": ([3, 1, 11], [3, 1, 11]),
    "empty sequences": ([0, 5, 0], [0, 5, 0]),
    "cross": ([2, 0, 5], [7, 3, 0]),
    "no sequence": ([], []),
    "no token": ([0, 0], [0, 0]),
}
DENSE = {"square": (2, 5, 5), "cross": (3, 2, 7), "no batch": (0, 3, 3), "no query": (2, 0, 3), "no key": (2, 3, 0)}
HEADS, HEAD_DIM, SCALE = 3, 5, 0.4


def offsets(lengths):
    return np.array([0, *accumulate(lengths)], np.int32)


def packed(seed, tokens, dtype=np.float64, layout="contiguous"):
    """(1, heads, tokens, head_dim), a view of (tokens, heads, head_dim)."""
    return normal(seed, (tokens, HEADS, HEAD_DIM), dtype, layout).transpose(1, 0, 2)[None]


def masks(seed, shape, dtype=np.float64):
    """No mask; a boolean one with a row that hides every key; an additive one with -inf and such a row."""
    visible = np.random.default_rng(seed).random(shape) < 0.7
    visible[..., :1, :] = False
    additive = np.where(visible, normal(seed + 1, shape), -np.inf).astype(dtype)
    return {"none": None, "boolean": visible, "additive": additive}


def everywhere(attn_mask, bias, shape):
    return (None if array is None else np.broadcast_to(array, shape) for array in (attn_mask, bias))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("name", PACKED)
def test_oracle_packed(name, mask, is_causal):
    lengths, lengths_k = PACKED[name]
    query, key, value = packed(1, sum(lengths)), packed(2, sum(lengths_k)), packed(3, sum(lengths_k))
    shape = (len(lengths), HEADS, max(lengths, default=0), max(lengths_k, default=0))
    attn_mask, bias = masks(4, shape)[mask], normal(6, shape)
    found = forward(
        reference,
        query,
        key,
        value,
        offsets(lengths),
        offsets(lengths_k),
        attn_mask,
        bias,
        is_causal,
        SCALE,
        True,
        None,
    )
    tokens_first = (array[0].transpose(1, 0, 2) for array in (query, key, value))
    expected = oracles.attention(*tokens_first, lengths, lengths_k, attn_mask, bias, is_causal, SCALE)
    assert found[0][0].transpose(1, 0, 2).flags.c_contiguous
    assert_close(found[0][0].transpose(1, 0, 2), expected[0], name="output")
    assert_close(found[1][0], expected[1], name="lse")
    assert_close(found[2], expected[2], name="probabilities")


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_equals_packed(name, mask, is_causal):
    batch, length, length_k = DENSE[name]
    query = normal(1, (batch, HEADS, length, HEAD_DIM))
    key, value = (normal(seed, (batch, HEADS, length_k, HEAD_DIM)) for seed in (2, 3))
    shape = (batch, HEADS, length, length_k)
    attn_mask, bias = masks(4, (batch, 1, length, length_k))[mask], normal(5, (HEADS, length, length_k))
    attn_mask, bias = everywhere(attn_mask, bias, shape)
    dense = forward(reference, query, key, value, None, None, attn_mask, bias, is_causal, SCALE, True, None)
    grad = normal(6, query.shape)
    dense_grads = backward(
        reference, grad, query, key, value, *dense[:2], None, None, attn_mask, bias, is_causal, SCALE
    )

    def pack(array):
        return array.transpose(1, 0, 2, 3).reshape(1, HEADS, array.shape[0] * array.shape[2], HEAD_DIM)

    cu_seqlens, cu_seqlens_k = offsets([length] * batch), offsets([length_k] * batch)
    packed_inputs = [pack(array) for array in (query, key, value)]
    found = forward(reference, *packed_inputs, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, SCALE, True, None)
    grads = backward(
        reference, pack(grad), *packed_inputs, *found[:2], cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, SCALE
    )
    assert dense[0].flags.c_contiguous
    assert_close(pack(dense[0]), found[0], name="output")
    assert_close(dense[1].transpose(1, 0, 2, 3).reshape(found[1].shape), found[1], name="lse")
    if batch:
        assert_close(dense[2], found[2], name="probabilities")
    for one, other in zip(dense_grads[:3], grads[:3], strict=True):
        assert_close(pack(one), other, name="gradient")
    assert_close(dense_grads[3], grads[3], name="grad_bias")


@QUICK
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 13, 39]), max_size=4),
    dtype=dtypes(),
    layout=layouts(),
    is_causal=st.booleans(),
    mask=st.sampled_from(["none", "boolean", "additive"]),
    seed=seeds(),
)
def test_low_precision(lengths, dtype, layout, is_causal, mask, seed):
    tokens, cu_seqlens, longest = sum(lengths), offsets(lengths), max(lengths, default=0)
    query, key, value, grad = (packed(seed + i, tokens, dtype, layout) for i in range(4))
    shape = (len(lengths), HEADS, longest, longest)
    attn_mask, bias = masks(seed, (1, 1, longest, longest), dtype)[mask], normal(seed + 4, (HEADS, 1, longest), dtype)
    wide_mask = attn_mask.astype(np.float64) if mask == "additive" else attn_mask
    wide = [array.astype(np.float64) for array in (query, key, value, grad)]
    options = (cu_seqlens, cu_seqlens, *everywhere(attn_mask, bias, shape), is_causal, SCALE)
    wide_options = (cu_seqlens, cu_seqlens, *everywhere(wide_mask, bias.astype(np.float64), shape), is_causal, SCALE)
    found = forward(reference, query, key, value, *options, True, None)
    exact = forward(reference, *wide[:3], *wide_options, True, None)
    assert found[0].dtype == found[2].dtype == dtype
    assert found[1].dtype == (np.float64 if dtype == np.float64 else np.float32)
    for name, one, other in zip(("output", "lse", "probabilities"), found, exact, strict=True):
        assert_close(one, other, name=name)
    gradients = backward(reference, grad, query, key, value, *found[:2], *options)
    expected = backward(reference, wide[3], *wide[:3], *exact[:2], *wide_options)
    for name, one, other in zip(("query", "key", "value", "bias"), gradients, expected, strict=True):
        # The backward starts from an output that was rounded already.
        assert_close(one, other, name=f"grad_{name}", at_least=1, factor=3)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("name", ["ragged", "cross", "empty sequences"])
def test_finite_differences(name, mask, is_causal):
    lengths, lengths_k = PACKED[name]
    query, key, value = packed(1, sum(lengths)), packed(2, sum(lengths_k)), packed(3, sum(lengths_k))
    shape = (len(lengths), HEADS, max(lengths), max(lengths_k))
    attn_mask, bias, grad = masks(4, shape)[mask], normal(6, (HEADS, 1, shape[3])), packed(7, sum(lengths))
    options = (offsets(lengths), offsets(lengths_k), attn_mask)

    def output(query=query, key=key, value=value, bias=bias):
        return forward(
            reference, query, key, value, *options, np.broadcast_to(bias, shape), is_causal, SCALE, False, None
        )

    full_bias = np.broadcast_to(bias, shape)
    gradients = backward(reference, grad, query, key, value, *output()[:2], *options, full_bias, is_causal, SCALE)
    assert_gradient(lambda query: output(query=query)[0], query, grad, gradients[0], "query")
    assert_gradient(lambda key: output(key=key)[0], key, grad, gradients[1], "key")
    assert_gradient(lambda value: output(value=value)[0], value, grad, gradients[2], "value")
    assert gradients[3].shape == (1, HEADS, 1, shape[3])
    assert_gradient(lambda bias: output(bias=bias)[0], bias, grad, gradients[3][0], "bias")


def test_a_query_that_sees_no_key():
    query, key, value = (normal(seed, (1, 1, 3, 4)) for seed in range(3))
    mask = np.ones((1, 1, 3, 3), bool)
    mask[0, 0, 1] = False
    output, lse, probs = forward(reference, query, key, value, None, None, mask, None, False, SCALE, True, None)
    assert not output[0, 0, 1].any() and not probs[0, 0, 1].any() and tuple(lse[0, 0, 1]) == (-np.inf, 0)
    grads = backward(
        reference, np.ones_like(output), query, key, value, output, lse, None, None, mask, None, False, SCALE
    )
    assert not grads[0][0, 0, 1].any() and all(np.isfinite(grad).all() for grad in grads[:3])
    assert grads[3] is None


def test_nan_reaches_every_query_that_sees_it_and_no_other():
    query, key, value = (normal(seed, (1, 1, 3, 4)) for seed in range(3))
    key[0, 0, 2, 1] = np.nan
    output, lse, _ = forward(reference, query, key, value, None, None, None, None, False, SCALE, False, None)
    assert np.isnan(output).all() and np.isnan(lse).all()
    output, lse, _ = forward(reference, query, key, value, None, None, None, None, True, SCALE, False, None)
    assert np.isfinite(output[0, 0, :2]).all() and np.isnan(output[0, 0, 2]).all()
    np.testing.assert_array_equal(np.isnan(lse[..., 1]), [[[False, False, True]]])


def test_large_scores_do_not_overflow():
    query = np.full((1, 1, 1, 1), 1e4, np.float32)
    key = np.array([1e4, 1e4, -1e4], np.float32).reshape(1, 1, 3, 1)
    value = np.array([1, 3, 100], np.float32).reshape(1, 1, 3, 1)
    output, lse, probs = forward(reference, query, key, value, None, None, None, None, False, 1.0, True, None)
    np.testing.assert_array_equal(probs.ravel(), [0.5, 0.5, 0])
    assert output.item() == 2
    assert_close(lse.ravel(), np.array([1e8, np.log(2)]))


def test_a_sequence_is_computed_as_if_it_were_alone():
    lengths = [5, 13, 2]
    query, key, value = (packed(seed, 20, np.float32) for seed in range(3))
    together = forward(
        reference, query, key, value, offsets(lengths), offsets(lengths), None, None, False, SCALE, False, None
    )
    for start, length in zip(accumulate([0, *lengths]), lengths, strict=False):
        tokens = (slice(None), slice(None), slice(start, start + length))
        alone = forward(
            reference,
            query[tokens],
            key[tokens],
            value[tokens],
            offsets([length]),
            offsets([length]),
            None,
            None,
            False,
            SCALE,
            0,
            None,
        )
        np.testing.assert_array_equal(alone[0], together[0][tokens])
        np.testing.assert_array_equal(alone[1], together[1][tokens])


def test_bfloat16_rounds_what_is_multiplied():
    """A score, an exponential and a value that bfloat16 cannot hold; their sums are not rounded."""
    one_and_bits = 1 + 2.0**-10  # rounds to 1
    query, key = np.full((1, 1, 1, 1), one_and_bits, np.float32), np.array([one_and_bits, 0], np.float32)
    value = np.array([3 + 2.0**-9, 1], np.float32)
    key, value = key.reshape(1, 1, 2, 1), value.reshape(1, 1, 2, 1)
    output, lse, probs = forward(reference, query, key, value, None, None, None, None, False, 1.0, True, "bfloat16")
    small = np.exp(-1.0)
    rounded = 0.3671875  # exp(-1) to 8 bits
    assert_close(lse.ravel(), np.array([1, np.log(1 + small)]))
    assert_close(probs.ravel(), np.array([1, small]) / (1 + small))
    assert_close(output.ravel(), np.array([(3 + rounded) / (1 + small)]))


def test_bfloat16_is_refused_where_it_has_no_meaning():
    arrays = [normal(seed, (1, 1, 3, 4), np.float32) for seed in range(3)]
    with pytest.raises(ValueError, match="compute_dtype is 'float16', expected one of None, 'bfloat16'"):
        attention(*arrays, compute_dtype="float16")
    with pytest.raises(TypeError, match="query has dtype float64, expected float32 with compute_dtype='bfloat16'"):
        attention(*(array.astype(np.float64) for array in arrays), compute_dtype="bfloat16")


@pytest.mark.parity
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(5, 5), (2, 7), (1, 39)])
def test_torch(lengths, is_causal):
    torch = pytest.importorskip("torch")
    query = normal(1, (2, HEADS, lengths[0], HEAD_DIM))
    key, value = (normal(seed, (2, HEADS, lengths[1], HEAD_DIM)) for seed in (2, 3))
    shape = (2, HEADS, *lengths)
    bias, grad = normal(4, shape), normal(5, query.shape)
    visible = np.random.default_rng(6).random(shape) < 0.7
    visible[..., 0] = True
    seen = visible & np.tri(*lengths, dtype=bool) if is_causal else visible

    def function(query, key, value, bias):
        mask = bias.masked_fill(~torch.tensor(seen), -torch.inf)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=SCALE)

    output, *expected = torch_gradients(function, grad, query, key, value, bias)
    found, lse, _ = forward(reference, query, key, value, None, None, visible, bias, is_causal, SCALE, False, None)
    assert_close(found, output)
    gradients = backward(reference, grad, query, key, value, found, lse, None, None, visible, bias, is_causal, SCALE)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other, at_least=1)


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("keys", [5, 16, 37])
def test_scales_that_are_not_positive(scale, keys):
    query, key, value = np.random.default_rng(6).normal(size=(3, 1, 2, keys, 8)).astype(np.float32)
    expected = attention(query, key, value, scale=scale, backend="numpy")
    assert_close(attention(query, key, value, scale=scale, backend="numba"), expected)
