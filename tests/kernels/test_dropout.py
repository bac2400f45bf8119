"""dropout/reference.py and the generator under it: published numbers, frequencies, the derivative."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.dropout import reference
from bertcore.kernels.philox import philox, random_bits
from tests.kernels.arrays import normal
from tests.kernels.attention_forms import arguments, attend, results
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.strategies import NUMBA_DTYPES
from tests.tolerances import assert_close

ONES = 2**32 - 1


@pytest.mark.parametrize(
    "counter, seed, words",  # the known answers that the authors publish with Random123
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, seed, words):
    assert philox(np.array(counter, np.uint64), seed).tolist() == list(words)


def test_bits_are_a_function_of_seed_row_and_column():
    rows = np.array([0, 1, 2**32, 2**40 + 3])
    bits = random_bits(7, rows, 160)
    np.testing.assert_array_equal(random_bits(7, rows[2:], 39), bits[2:, :39])
    assert len(np.unique(bits)) == bits.size
    assert not np.isin(random_bits(8, rows, 160), bits).any()
    assert bits[1, 64 + 3 * 16 + 5] == philox(np.array([16 + 5, 1, 0, 0]), 7)[3]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_frequency(p):
    """As many are dropped as were asked for, within 5 standard deviations, and no two neighbours are alike by rule."""
    count = 100_000
    is_kept = reference.dropout(np.ones(count), p, 1, None) > 0
    spread = np.sqrt(p * (1 - p) / count)
    assert abs(1 - is_kept.mean() - p) < 5 * spread
    for step in (1, 16, 64):
        both = (is_kept[step:] & is_kept[:-step]).mean()
        assert abs(both - (1 - p) ** 2) < 10 * spread


def test_derivative():
    x, grad, residual = normal(1, (3, 39)), normal(2, (3, 39)), normal(3, (3, 39))
    gradient = reference.dropout_backward(grad, 0.3, 5)
    assert_gradient(lambda x: reference.dropout(x, 0.3, 5, residual), x, grad, gradient)


@pytest.mark.parametrize("p, seed, error", [(1.0, 0, "p is 1.0"), (-0.1, 0, "p is -0.1"), (np.nan, 0, "p is nan")])
def test_probabilities_that_are_none(p, seed, error):
    with pytest.raises(ValueError, match=error):
        kernels.dropout(np.ones(3, np.float32), p, seed)


@pytest.mark.parametrize("seed, kind", [(-1, ValueError), (2**64, ValueError), (0.5, TypeError), (None, TypeError)])
def test_seeds_that_are_none(seed, kind):
    with pytest.raises(kind, match="seed"):
        kernels.dropout(np.ones(3, np.float32), 0.5, seed)


# --- in attention -----------------------------------------------------------------------------------

FORMS = ["plain", "causal", "window", "shared heads", "deberta", "all"]
DROPOUT = {"dropout_p": 0.3, "dropout_seed": 2**63 + 5}


def kept(given):
    """What each probability is multiplied by, (sequences, heads, longest query, longest key), from the definition."""
    starts, heads = given["cu_seqlens"], given["query"].shape[1]
    lengths, lengths_k = np.diff(starts), np.diff(given["cu_seqlens_k"])
    factors = np.zeros((len(lengths), heads, lengths.max(), lengths_k.max()))
    for s, h in np.ndindex(factors.shape[:2]):
        rows = (starts[s] + np.arange(lengths[s])) * heads + h
        bits = random_bits(DROPOUT["dropout_seed"], rows, lengths_k[s])
        factors[s, h, : lengths[s], : lengths_k[s]] = (bits >= 0.3 * 2**32) / 0.7
    return factors


@pytest.mark.parametrize("backend", ["numpy", pytest.param("numba", marks=pytest.mark.slow)])  # in float64
@pytest.mark.parametrize("form", FORMS)
def test_attention_drops_probabilities(form, backend):
    given = arguments(form, [3, 0, 1, 70, 300], [3, 2, 7, 70, 300], head_dim=8)
    output, probs = attend(given | DROPOUT, return_probs=True, backend=backend)
    np.testing.assert_allclose(probs, attend(given, return_probs=True, backend="numpy")[1], atol=1e-12)
    weights, expected = probs * kept(given), np.zeros_like(output)
    queries, keys, shared = given["cu_seqlens"], given["cu_seqlens_k"], output.shape[1] // given["value"].shape[1]
    for s in range(len(queries) - 1):
        own = given["value"][keys[s] : keys[s + 1]].repeat(shared, axis=1)
        count = queries[s + 1] - queries[s]
        expected[queries[s] : queries[s + 1]] = np.einsum("hij,jhd->ihd", weights[s, :, :count, : len(own)], own)
    assert_close(output, expected)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_attention_that_drops(form):
    given = arguments(form, [2, 0, 5], [7, 3, 9], head_dim=3) | DROPOUT
    grad = normal(9, given["query"].shape)
    found = results(given, "numpy", grad)
    for which in {"query", "key", "value", "bias", "position_key", "position_bias"} & given.keys():

        def output(changed, which=which):
            return attend(given | {which: changed}, backend="numpy")

        assert_gradient(output, given[which], grad, found[f"grad_{which}"], which)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_numba_drops_as_the_definition_does(form, dtype):
    given = arguments(form, [3, 0, 1, 70, 300], [3, 2, 7, 70, 300], dtype, head_dim=8) | DROPOUT
    exact = {name: value.astype(np.float64) if _is_float(value) else value for name, value in given.items()}
    expected, found = results(exact, "numpy"), results(given, "numba")
    for name, array in found.items():
        if array is not None and expected[name] is not None:
            assert_close(array, expected[name], name=name, factor=4)


def _is_float(value):
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def test_dense_attention_counts_the_queries_of_a_batch_on():
    query, key, value = (normal(seed, (3, 2, 7, 5), np.float32) for seed in (1, 2, 3))
    offsets = np.arange(4, dtype=np.int32) * 7
    packed = [array.transpose(0, 2, 1, 3).reshape(21, 2, 5) for array in (query, key, value)]
    for backend in ("numpy", "numba"):
        dense = kernels.attention(query, key, value, **DROPOUT, backend=backend)
        found = kernels.attention(*packed, cu_seqlens=offsets, **DROPOUT, backend=backend)
        assert_close(dense.transpose(0, 2, 1, 3).reshape(21, 2, 5), found)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"dropout_p": 1.0}, "dropout_p is 1.0"),
        ({"dropout_p": 0.5, "dropout_seed": -1}, "dropout_seed is -1"),
        ({"dropout_p": 0.5, "compute_dtype": "bfloat16"}, "dropout_p is 0.5, but compute_dtype"),
    ],
)
def test_attention_refuses(options, error):
    array = np.ones((1, 1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=error):
        kernels.attention(array, array, array, **options)
