"""Attention: the reference against an oracle and finite differences, and what backends promise."""

import numpy as np
import pytest

from bertcore.kernels import RelativePositions, alibi_positions, attention, bucketed_distances
from bertcore.kernels.attention.positions import alibi_slopes
from tests.kernels import oracles
from tests.kernels.attention_forms import FORMS, OF_KEYS, OF_QUERIES, arguments, attend, results
from tests.kernels.finite_differences import assert_gradients
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

LENGTHS = {  # of the queries and of the keys
    "one": ([7], [7]),
    "ragged": ([3, 1, 11], [3, 1, 11]),
    "empty sequences": ([0, 5, 0], [0, 5, 0]),
    "memory": ([2, 0, 5], [7, 3, 9]),
    "fewer keys": ([5, 2], [3, 0]),
    "no sequence": ([], []),
    "no token": ([0, 0], [0, 0]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LENGTHS)
def test_oracle(name, form):
    given = arguments(form, *LENGTHS[name])
    found, expected = results(given, "numpy"), oracles.attention(**given)
    for which, table in (("content to position", "position_key"), ("position to content", "position_query")):
        if table not in given:
            assert found[which] is None
            del expected[which]
    for which, array in expected.items():
        assert_close(found[which], array, name=which)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["memory", "empty sequences"])
def test_finite_differences(name, form):
    assert_gradients("attention", arguments(form, *LENGTHS[name], head_dim=3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(2, 5, 5), (3, 2, 7), (2, 0, 3), (2, 3, 0)], ids=str)
def test_dense_equals_packed(cpu_backend, sizes, form):
    batch, length, length_k = sizes
    dtype = np.float64 if cpu_backend == "numpy" else np.float32
    given = arguments(form, [length] * batch, [length_k] * batch, dtype)

    def unpacked(name, array):
        if array is None or name.removeprefix("grad_") not in OF_QUERIES | OF_KEYS | {"output"}:
            return array
        tokens = length_k if name.removeprefix("grad_") in OF_KEYS else length
        array = array.reshape(batch, tokens, *array.shape[1:])
        return array if array.ndim == 2 else array.swapaxes(1, 2)

    dense = {name: unpacked(name, array) for name, array in given.items() if not name.startswith("cu_seqlens")}
    grad = normal(9, given["query"].shape, dtype)
    found, expected = results(dense, cpu_backend, unpacked("output", grad)), results(given, cpu_backend, grad)
    expected["lse"] = np.moveaxis(expected["lse"].reshape(given["query"].shape[1], batch, length, 2), 1, 0)
    for name, array in found.items():
        if array is None:
            assert expected[name] is None
        else:
            assert array.flags.c_contiguous or name != "output"
            assert_close(array, unpacked(name, expected[name]), name=name, factor=3, at_least=1)


def test_scores_in_the_thousands_keep_their_digits(cpu_backend):
    """lse as one float32 would lose the logarithm of the sum: gradients 100 times worse."""
    given = arguments("plain", [5, 0, 39], [9, 3, 39], np.float32, head_dim=8)
    given["query"] *= 2000
    exact = results(
        {name: np.asarray(it, "f8") if name in OF_QUERIES | OF_KEYS else it for name, it in given.items()}, "numpy"
    )
    found = results(given, cpu_backend)
    assert_close(found["output"], exact["output"], factor=500)  # a score of 10,000 is rounded by 5e-4
    assert_close(found["grad_value"], exact["grad_value"], factor=500, at_least=1)
    assert_close(found["grad_key"], exact["grad_key"], factor=2000)


@pytest.mark.parametrize("lowest", [-1e9, float(np.finfo(np.float32).min)])
def test_a_large_finite_mask_on_every_key_counts_the_keys(cpu_backend, lowest):
    """-1e9 + log(n) is -1e9: the gradient of the values would be n times too large."""
    query, key, value = (normal(seed, (1, 1, 7, 4), np.float32) for seed in range(3))
    given = {"query": query, "key": key, "value": value, "attn_mask": np.full((7, 7), lowest, np.float32)}
    found = results(given, cpu_backend, np.ones_like(query))
    assert_close(found["grad_value"].sum(), np.array(28.0))
    assert (found["lse"][..., 0] < -9e8).all()


def test_bfloat16_rounds_what_is_multiplied():
    """A score, an exponential and a value that bfloat16 cannot hold; their sums are not rounded."""
    one_and_bits = 1 + 2.0**-10  # rounds to 1
    query, key = np.full((1, 1, 1, 1), one_and_bits, np.float32), np.array([one_and_bits, 0], np.float32)
    value = np.array([3 + 2.0**-9, 1], np.float32)
    key, value = key.reshape(1, 1, 2, 1), value.reshape(1, 1, 2, 1)
    asked = {"scale": 1.0, "compute_dtype": "bfloat16", "return_lse": True, "backend": "numpy"}
    output, lse, probs = attention(query, key, value, **asked, return_probs=True)
    small = np.exp(-1.0)
    rounded = 0.3671875  # exp(-1) to 8 bits
    assert_close(lse.ravel(), np.array([1, np.log(1 + small)]))
    assert_close(probs.ravel(), np.array([1, small]) / (1 + small))
    assert_close(output.ravel(), np.array([(3 + rounded) / (1 + small)]))
    relative = RelativePositions(np.array([0]), *[np.full((1, 1, 1), one_and_bits, np.float32)] * 2)
    *_, lse, components = attention(*[query] * 3, relative=relative, **asked, return_components=True)
    assert tuple(lse.ravel()) == (3, 0) and [component.item() for component in components] == [1, 1, 1]


def test_slopes_of_alibi():
    np.testing.assert_array_equal(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_array_equal(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    table = alibi_positions(2, 3)
    np.testing.assert_array_equal(table.distance_rows, [2, 1, 0, 1, 2])
    assert_close(table.position_bias, -np.arange(3)[:, None] * np.array([2.0**-4, 2.0**-8]))


@pytest.mark.parity
@pytest.mark.parametrize("special", [1, np.nan, np.inf])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_query_that_a_mask_hides_from_all_keys_gives_what_pytorch_does(backend, special):
    torch = pytest.importorskip("torch")
    query, key, value = (normal(seed, (1, 2, 3, 8), np.float32) for seed in (1, 2, 3))
    mask = np.arange(3)[:, None] > np.zeros(3)  # hides all keys from the first query
    query[0, :, 0, 0] = special
    found = attention(query, key, value, attn_mask=mask, backend=backend)
    tensors = map(torch.from_numpy, (query, key, value, mask))
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors)
    assert_close(found, expected.numpy())
    assert np.isnan(found[0, 0, 0]).all() == (special != 1)


@pytest.mark.parity
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (18, 128), (30, 128), (5, 3), (21, 160), (64, 256)])
def test_buckets_are_those_of_transformers(buckets, farthest):
    torch, mpnet = pytest.importorskip("torch"), pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    distances = np.arange(-600, 601)
    expected = mpnet.MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances), buckets, farthest).numpy()
    found = bucketed_distances(buckets, farthest)[np.clip(distances, -farthest, farthest) + farthest]
    np.testing.assert_array_equal(found, expected)


def test_the_offsets_and_segments_of_keys_are_those_of_queries_by_default():
    given = arguments("xlnet", [3, 4])
    given["segment_ids_k"] = given["segment_ids"]
    expected = attend(given, backend="numpy")
    for name in ("segment_ids_k", "cu_seqlens_k"):
        del given[name]
    np.testing.assert_array_equal(attend(given, backend="numpy"), expected)
