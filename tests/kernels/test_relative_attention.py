"""relative_attention: the reference against a naive oracle and finite differences, the contract and its messages."""

import math
import re
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import attention
from tests.kernels import oracles
from tests.kernels.attention_forms import relative_attention, relative_attention_backward
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.strategies import QUICK, dtypes, normal, seeds
from tests.tolerances import assert_close

HEADS, HEAD_DIM, ROWS, SCALE = 2, 5, 7, 0.4
LENGTHS = {
    "one": ([7], [7]),
    "ragged": ([3, 1, 11], [3, 1, 11]),
    "empty sequences": ([0, 5, 0], [0, 5, 0]),
    "memory": ([2, 0, 5], [7, 3, 9]),
    "fewer keys": ([5, 2], [3, 0]),
    "no sequence": ([], []),
    "no token": ([0, 0], [0, 0]),
}
TERMS = {
    "position_key": ["position_key"],
    "position_query": ["position_query"],
    "both": ["position_key", "position_query"],
    "xlnet": ["position_key", "query_for_position", "segment_scores"],
    "all": ["position_key", "position_query", "query_for_position", "segment_scores"],
}


def problem(lengths, lengths_k, terms, distances=5, dtype=np.float64, seed=1, heads=HEADS, head_dim=HEAD_DIM):
    """(arrays with a gradient by name, other arguments by name)."""
    tokens, keys = sum(lengths), sum(lengths_k)
    shapes = {
        "query": (tokens, heads, head_dim), "key": (keys, heads, head_dim), "value": (keys, heads, head_dim),
        "position_key": (ROWS, heads, head_dim), "position_query": (ROWS, heads, head_dim),
        "query_for_position": (tokens, heads, head_dim), "segment_scores": (tokens, heads, 2),
    }  # fmt: skip
    wanted = ["query", "key", "value", *TERMS[terms]]
    arrays = {name: normal(seed + i, shapes[name], dtype) for i, name in enumerate(wanted)}
    rng = np.random.default_rng(seed)
    others = {
        "distance_rows": rng.integers(0, ROWS, distances),
        "cu_seqlens": np.array([0, *accumulate(lengths)], np.int32),
        "cu_seqlens_k": np.array([0, *accumulate(lengths_k)], np.int32),
        "scale": SCALE,
    }
    if "segment_scores" in arrays:
        others |= {"segment_ids": rng.integers(-1, 2, tokens), "segment_ids_k": rng.integers(-1, 2, keys)}
    return arrays, others


def masks(shape, seed=5):
    """No mask; a boolean one with a row that hides every key; an additive one with such a row."""
    visible = np.random.default_rng(seed).random(shape) < 0.7
    visible[..., :1, :] = False
    return {"none": None, "boolean": visible, "additive": np.where(visible, normal(seed, shape), -np.inf)}


@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", LENGTHS)
def test_oracle(name, terms, mask):
    lengths, lengths_k = LENGTHS[name]
    arrays, others = problem(lengths, lengths_k, terms)
    shape = (len(lengths), HEADS, max(lengths, default=0), max(lengths_k, default=0))
    attn_mask = masks(shape)[mask]
    output, lse, probs, components = relative_attention(
        **arrays, **others, attn_mask=attn_mask, return_lse=True, return_probs=True, return_components=True,
        backend="numpy",
    )  # fmt: skip
    segments = None
    if "segment_scores" in arrays:
        segments = others["segment_ids"], others["segment_ids_k"], arrays["segment_scores"]
    expected = oracles.relative_attention(
        arrays, others["distance_rows"], segments, lengths, lengths_k, attn_mask, SCALE
    )
    for which, found, wanted in zip(("output", "lse", "probs"), (output, lse, probs), expected, strict=False):
        assert_close(found, wanted, name=which)
    for name, found, wanted in zip((None, "position_key", "position_query"), components, expected[3], strict=True):
        if name is not None and name not in arrays:
            assert found is None
        else:
            assert_close(found, wanted, name=f"component of {name}")


@pytest.mark.parametrize("mask", ["none", "additive"])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", ["memory", "empty sequences"])
def test_finite_differences(name, terms, mask):
    lengths, lengths_k = LENGTHS[name]
    arrays, others = problem(lengths, lengths_k, terms, heads=1, head_dim=3)
    others["attn_mask"] = masks((len(lengths), 1, max(lengths), max(lengths_k)))[mask]
    output, lse = relative_attention(**arrays, **others, return_lse=True, backend="numpy")
    grad = normal(9, output.shape)
    gradients = relative_attention_backward(grad, **arrays, **others, output=output, lse=lse, backend="numpy")
    for name, array in arrays.items():

        def function(changed, name=name):
            return relative_attention(**{**arrays, name: changed}, **others, backend="numpy")

        assert_gradient(function, array, grad, gradients[name], name)
    for name, gradient in gradients.items():
        assert (gradient is None) == (name not in arrays)


@QUICK
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 13]), max_size=3), terms=st.sampled_from(sorted(TERMS)),
    dtype=dtypes(), seed=seeds(),
)  # fmt: skip
def test_low_precision(lengths, terms, dtype, seed):
    arrays, others = problem(lengths, lengths, terms, 9, dtype, seed)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    asked = {"return_lse": True, "backend": "numpy"}
    (output, lse), (exact, exact_lse) = (relative_attention(**some, **others, **asked) for some in (arrays, wide))
    assert output.dtype == dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert_close(output, exact, name="output")
    assert_close(lse, exact_lse, name="lse")
    grad = normal(seed, output.shape, dtype)
    found = relative_attention_backward(grad, **arrays, **others, output=output, lse=lse, backend="numpy")
    expected = relative_attention_backward(
        grad.astype(np.float64), **wide, **others, output=exact, lse=exact_lse, backend="numpy"
    )
    for name in arrays:
        assert_close(found[name], expected[name], name=f"grad_{name}", at_least=1, factor=3)


def test_bfloat16_rounds_the_tables_and_what_they_are_multiplied_with():
    one_and_bits = np.float32(1 + 2.0**-10)  # rounds to 1
    vector, table = np.full((1, 1, 1), one_and_bits), np.full((1, 1, 1), one_and_bits)
    arguments = {"query": vector, "key": vector, "value": vector, "position_key": table, "position_query": table}
    options = {"distance_rows": np.array([0]), "scale": 1.0, "compute_dtype": "bfloat16", "return_components": True}
    output, lse, components = relative_attention(**arguments, **options, return_lse=True, backend="numpy")
    assert output.item() == 1 and tuple(lse.ravel()) == (3, 0)
    assert [component.item() for component in components] == [1, 1, 1]


def test_without_relative_terms_it_is_attention():
    arrays, others = problem([5, 9], [5, 9], "both")
    arrays["position_key"] = arrays["position_query"] = np.zeros((ROWS, HEADS, HEAD_DIM))
    found = relative_attention(**arrays, **others, backend="numpy")
    own = {name: others[name] for name in ("cu_seqlens", "scale")}
    expected = attention(arrays["query"], arrays["key"], arrays["value"], **own, backend="numpy")
    assert_close(found, expected)


def log_buckets(bucket_size, max_position, length):
    """DeBERTa v2's rows for all distances below `length`: the first half of each side as they are, then logarithmic."""
    rows, half = [], bucket_size // 2
    for distance in range(1 - length, length):
        bucket = distance
        if abs(distance) > half:
            share = math.log(abs(distance) / half) / math.log((max_position - 1) / half)
            bucket = int(math.copysign(math.ceil(share * (half - 1)) + half, distance))
        rows.append(min(max(bucket + bucket_size, 0), 2 * bucket_size - 1))
    return np.array(rows)


def test_log_buckets_tell_far_distances_from_near_ones(cpu_backend):
    """Keys that differ in nothing but their distance, longer than the rows say: the end rows stand for all beyond."""
    length = 600
    rows = log_buckets(256, 512, 512)
    assert len(rows) == 1023 and rows[511] == 256 and (np.diff(rows) >= 0).all() and np.unique(rows).size < 520
    query, key = np.ones((1, 1, 1), np.float32), np.zeros((length, 1, 1), np.float32)
    table = np.arange(512, dtype=np.float32).reshape(512, 1, 1) / 64
    offsets = {"cu_seqlens": np.array([0, 1]), "cu_seqlens_k": np.array([0, length])}
    _, probs = relative_attention(
        query, key, key, distance_rows=rows, position_key=table, scale=1.0, **offsets, return_probs=True
    )
    scores = table.ravel()[rows[np.minimum(np.arange(length - 1, -1, -1), 511) + 511]].astype(np.float64)
    expected = np.exp(scores - scores.max())
    assert_close(probs.ravel(), expected / expected.sum(), factor=3)


def test_what_is_returned():
    arrays, others = problem([3, 4], [3, 4], "position_key")
    output = relative_attention(**arrays, **others, backend="numpy")
    assert isinstance(output, np.ndarray)
    everything = relative_attention(
        **arrays, **others, return_lse=True, return_probs=True, return_components=True, backend="numpy"
    )
    assert [array.shape for array in everything[:3]] == [(7, HEADS, HEAD_DIM), (HEADS, 7, 2), (2, HEADS, 4, 4)]
    assert everything[3][2] is None and everything[3][0].shape == (2, HEADS, 4, 4)
    del others["cu_seqlens"], others["cu_seqlens_k"], others["scale"]
    whole = {"cu_seqlens": np.array([0, 7]), "cu_seqlens_k": np.array([0, 7]), "scale": HEAD_DIM**-0.5}
    np.testing.assert_array_equal(
        relative_attention(**arrays, **others, backend="numpy"),
        relative_attention(**arrays, **others, **whole, backend="numpy"),
    )


def test_segments_of_the_keys_are_those_of_the_queries_by_default():
    arrays, others = problem([3, 4], [3, 4], "xlnet")
    others["segment_ids_k"] = others["segment_ids"]
    expected = relative_attention(**arrays, **others, backend="numpy")
    del others["segment_ids_k"]
    np.testing.assert_array_equal(relative_attention(**arrays, **others, backend="numpy"), expected)


def f32(*shape):
    return normal(1, shape, np.float32)


# What is given instead of a right argument, the error, and what its message must hold.
HOSTILE = {
    "no table": ({"position_key": None, "position_query": None}, ValueError, "position_key position_query None"),
    "a table's heads": ({"position_key": f32(5, 3, 4)}, ValueError, "position_key (5, 3, 4) (any, 2, 4)"),
    "tables of two sizes": ({"position_query": f32(6, 2, 4)}, ValueError, "position_query (6, 2, 4) (5, 2, 4)"),
    "a table's dtype": ({"position_query": normal(1, (5, 2, 4))}, TypeError, "position_query float64 float32 query"),
    "p without its table": (
        {"position_key": None, "position_query": f32(5, 2, 4), "query_for_position": f32(7, 2, 4)},
        ValueError, "query_for_position position_key",
    ),
    "p's shape": ({"query_for_position": f32(6, 2, 4)}, ValueError, "query_for_position (6, 2, 4) (7, 2, 4)"),
    "no rows": ({"distance_rows": np.array([], int)}, ValueError, "distance_rows (0,) odd"),
    "an even number of rows": ({"distance_rows": np.array([0, 1])}, ValueError, "distance_rows (2,) odd"),
    "rows on two axes": ({"distance_rows": np.array([[0]])}, ValueError, "distance_rows (1, 1) odd"),
    "rows that are floats": ({"distance_rows": np.array([0.0])}, TypeError, "distance_rows float64 integer"),
    "a row that is none": ({"distance_rows": np.array([0, 5, 1])}, ValueError, "distance_rows[1] 5 0 to 4"),
    "a negative row": ({"distance_rows": np.array([-1])}, ValueError, "distance_rows[0] -1 0 to 4"),
    "ids alone": ({"segment_ids": np.zeros(7, int)}, ValueError, "segment_ids alone segment_scores"),
    "segment scores alone": ({"segment_scores": f32(7, 2, 2)}, ValueError, "segment_scores alone segment_ids"),
    "ids of keys alone": ({"segment_ids_k": np.zeros(7, int)}, ValueError, "segment_ids_k without segment_ids"),
    "segment scores' shape": (
        {"segment_scores": f32(7, 2, 3), "segment_ids": np.zeros(7, int)}, ValueError, "segment_scores (7, 2, 2)",
    ),
    "too few ids": (
        {"segment_scores": f32(7, 2, 2), "segment_ids": np.zeros(6, int)}, ValueError, "segment_ids (6,) (7,)",
    ),
    "ids that are floats": (
        {"segment_scores": f32(7, 2, 2), "segment_ids": np.zeros(7)}, TypeError, "segment_ids float64 integer",
    ),
    "an id too large for float32": (
        {"segment_scores": f32(7, 2, 2), "segment_ids": np.full(7, 2**24)}, ValueError, "segment_ids 16777216",
    ),
    "no ids for other keys": (
        {
            "segment_scores": f32(7, 2, 2), "segment_ids": np.zeros(7, int), "key": f32(8, 2, 4),
            "value": f32(8, 2, 4), "cu_seqlens_k": np.array([0, 3, 8]),
        },
        ValueError, "segment_ids_k 8 7",
    ),
    "no offsets for other keys": ({"key": f32(8, 2, 4), "value": f32(8, 2, 4)}, ValueError, "cu_seqlens_k 8 7"),
    "offsets beyond the tokens": ({"cu_seqlens": np.array([0, 8])}, ValueError, "cu_seqlens 8 7 query"),
    "a mask's shape": ({"attn_mask": np.ones((2, 2, 3, 3), bool)}, ValueError, "attn_mask (2, 2, 3, 3) (2, 2, 4, 4)"),
    "a mask of integers": ({"attn_mask": np.ones((4, 4), int)}, TypeError, "attn_mask int64 bool float32"),
    "a compute_dtype": ({"compute_dtype": "float16"}, ValueError, "compute_dtype float16 bfloat16"),
    "a scale": ({"scale": math.inf}, ValueError, "scale inf finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arguments(name):
    changed, error, words = HOSTILE[name]
    right = {
        "query": f32(7, 2, 4), "key": f32(7, 2, 4), "value": f32(7, 2, 4), "cu_seqlens": np.array([0, 3, 7]),
        "distance_rows": np.array([0, 1, 2]), "position_key": f32(5, 2, 4),
    }  # fmt: skip
    relative_attention(**right, backend="numpy")
    with pytest.raises(error) as raised:
        relative_attention(**{**right, **changed}, backend="numpy")
    for word in re.findall(r"\(.*?\)|\S+", words):
        assert word in str(raised.value), raised.value


@pytest.mark.parametrize("wrong", ["grad_output", "output", "lse"])
def test_hostile_gradients(wrong):
    arrays, others = problem([3, 4], [3, 4], "both")
    output, lse = relative_attention(**arrays, **others, return_lse=True, backend="numpy")
    given = {"grad_output": output, "output": output, "lse": lse}
    for changed, error in ((given[wrong][:-1], ValueError), (given[wrong].astype(np.float32), TypeError)):
        with pytest.raises(error, match=f"^{wrong} has"):
            relative_attention_backward(**arrays, **others, **{**given, wrong: changed}, backend="numpy")
