"""What attention promises on every CPU backend: windows, biases by distance, shared heads, exact sums, odd memory."""

import numpy as np
import pytest

from bertcore.kernels import RelativePositions, alibi_positions, attention, attention_backward, bucketed_distances
from bertcore.kernels.attention.positions import _alibi_slopes
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

OFFSETS, OFFSETS_K = np.array([0, 5, 5, 44]), np.array([0, 9, 12, 51])
WINDOWS = {"both sides": (3, (3, 3)), "left": ((2, None), (2, 99)), "right": ((None, 0), (99, 0)), "own": (0, (0, 0))}


def packed(dtype=np.float32, heads=4, heads_k=4, width=8):
    query = normal(1, (44, heads, width), dtype)
    return query, *(normal(seed, (51, heads_k, width), dtype) for seed in (2, 3))


def both_ways(arrays, backend, **options):
    """Output and gradients."""
    options |= {"cu_seqlens": OFFSETS, "cu_seqlens_k": OFFSETS_K, "backend": backend}
    output, lse = attention(*arrays, **options, return_lse=True)
    return output, attention_backward(normal(4, output.shape, output.dtype), *arrays, output, lse, **options)


def assert_same(found, expected, **options):
    (output, grads), (wanted, wanted_grads) = found, expected
    assert_close(output, wanted, name="output", factor=3, **options)
    for name, one, other in zip(grads._fields[:3], grads, wanted_grads, strict=False):
        assert_close(one, other, name=name, factor=3, at_least=1)


def bias_of(positions, heads, longest=39, longest_k=39):
    """The biases of the sequences by distance, written out: (sequences, heads, longest, longest of the keys)."""
    bias = np.zeros((3, heads, longest, longest_k), positions.position_bias.dtype)
    middle = len(positions.distance_rows) // 2
    for s, h, i, j in np.ndindex(bias.shape):
        queries, keys = OFFSETS[s + 1] - OFFSETS[s], OFFSETS_K[s + 1] - OFFSETS_K[s]
        distance = np.clip(i + keys - queries - j, -middle, middle)
        bias[s, h, i, j] = positions.position_bias[positions.distance_rows[distance + middle], h]
    return bias


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_hides_what_a_mask_hides(cpu_backend, name):
    window, (left, right) = WINDOWS[name]
    mask = np.zeros((3, 1, 39, 39), bool)
    for s, _, i, j in np.ndindex(mask.shape):
        at = i + (OFFSETS_K[s + 1] - OFFSETS_K[s]) - (OFFSETS[s + 1] - OFFSETS[s])
        mask[s, 0, i, j] = at - left <= j <= at + right
    arrays = packed(np.float64 if cpu_backend == "numpy" else np.float32)
    assert_same(both_ways(arrays, cpu_backend, window=window), both_ways(arrays, cpu_backend, attn_mask=mask))


def test_biases_by_distance_are_a_bias(cpu_backend):
    for positions in (
        alibi_positions(4, 39),
        RelativePositions(bucketed_distances(), position_bias=normal(5, (32, 4), np.float32)),
    ):
        arrays, bias = packed(), bias_of(positions, 4)
        found, expected = both_ways(arrays, cpu_backend, relative=positions), both_ways(arrays, cpu_backend, bias=bias)
        assert_same(found, expected)
        summed = np.zeros(positions.position_bias.shape)
        middle = len(positions.distance_rows) // 2
        for s, h, i, j in np.ndindex(bias.shape):
            distance = i + (OFFSETS_K[s + 1] - OFFSETS_K[s]) - (OFFSETS[s + 1] - OFFSETS[s]) - j
            row = positions.distance_rows[np.clip(distance, -middle, middle) + middle]
            summed[row, h] += expected[1].bias[s, h, i, j]
        assert_close(found[1].relative.position_bias, summed, factor=10, at_least=1)


@pytest.mark.parametrize("heads_k", [1, 2])
def test_heads_of_keys_and_values_are_shared(cpu_backend, heads_k):
    query, key, value = packed(heads_k=heads_k)
    repeated = query, *(np.repeat(array, 4 // heads_k, axis=1) for array in (key, value))
    output, grads = both_ways((query, key, value), cpu_backend)
    wanted, wanted_grads = both_ways(repeated, cpu_backend)
    assert_close(output, wanted)
    for name in ("key", "value"):
        summed = getattr(wanted_grads, name).reshape(51, heads_k, -1, 8).sum(axis=2)
        assert_close(getattr(grads, name), summed, name=name, factor=3, at_least=1)


def test_scores_in_the_thousands_keep_their_digits(cpu_backend):
    """lse as one float32 would lose the logarithm of the sum: gradients 100 times worse."""
    arrays = packed()
    arrays = arrays[0] * np.float32(2000), *arrays[1:]
    exact = both_ways([array.astype(np.float64) for array in arrays], "numpy")
    output, grads = both_ways(arrays, cpu_backend)
    assert_close(output, exact[0], factor=500)  # a score of 10,000 is rounded by 5e-4
    assert_close(grads.value, exact[1].value, factor=500, at_least=1)
    assert_close(grads.key, exact[1].key, factor=2000)


@pytest.mark.parametrize("lowest", [-1e9, float(np.finfo(np.float32).min)])
def test_a_large_finite_mask_on_every_key_counts_the_keys(cpu_backend, lowest):
    """-1e9 + log(n) is -1e9: the gradient of the values would be n times too large."""
    query, key, value = (normal(seed, (1, 1, 7, 4), np.float32) for seed in range(3))
    mask = np.full((7, 7), lowest, np.float32)
    output, lse = attention(query, key, value, attn_mask=mask, return_lse=True, backend=cpu_backend)
    grads = attention_backward(
        np.ones_like(output), query, key, value, output, lse, attn_mask=mask, backend=cpu_backend
    )
    assert_close(grads.value.sum(), np.array(28.0))
    assert (lse[..., 0] < -9e8).all()


@pytest.mark.parametrize("name", ["attn_mask", "bias"])
def test_misaligned_masks_are_read_where_they_are(name):
    query, key, value = (normal(seed, (1, 2, 9, 4), np.float32) for seed in range(3))
    mask = normal(3, (1, 2, 9, 9), np.float32)
    shifted = np.frombuffer(bytearray(mask.nbytes + 1), "f4", mask.size, 1).reshape(mask.shape)
    shifted[...] = mask
    assert not shifted.flags.aligned
    results = []
    for given in (mask, shifted):
        output, lse = attention(query, key, value, **{name: given}, return_lse=True, backend="numba")
        results.append(
            (output, attention_backward(output, query, key, value, output, lse, **{name: given}, backend="numba").query)
        )
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_queries_without_keys_have_no_gradient():
    """Once they got what another sequence had left in the scratch."""
    offsets, offsets_k = np.array([0, 1, 2, 3]), np.array([0, 9, 9, 39])
    query, p = (normal(seed, (3, 2, 8), np.float32) for seed in (1, 2))
    key, table = normal(3, (39, 2, 8), np.float32), normal(4, (5, 2, 8), np.float32)
    relative = RelativePositions(np.arange(5), position_key=table, query_for_position=p)
    options = {"cu_seqlens": offsets, "cu_seqlens_k": offsets_k, "relative": relative, "backend": "numba"}
    output, lse = attention(query, key, key, **options, return_lse=True)
    grads = attention_backward(np.ones_like(output), query, key, key, output, lse, **options)
    assert not grads.relative.query_for_position[1].any() and grads.relative.query_for_position[[0, 2]].any()


def test_scratch_that_there_is_no_memory_for_is_an_error_with_its_size(monkeypatch):
    from bertcore.kernels.attention import records

    def refuse(shape, dtype):
        raise MemoryError(f"Unable to allocate {shape[0]} bytes")

    query = normal(1, (1, 2, 9, 4), np.float32)
    output, lse = attention(query, query, query, return_lse=True, backend="numba")
    monkeypatch.setattr(records, "empty", refuse)
    with pytest.raises(MemoryError, match="bytes"):
        attention(query, query, query, backend="numba")
    with pytest.raises(MemoryError, match="bytes"):
        attention_backward(output, query, query, query, output, lse, backend="numba")


def test_a_window_has_the_same_bits_whatever_the_queries_are():
    query, key, value = (normal(seed, (700, 2, 8), np.float32) for seed in range(3))
    options = {"window": (70, 9), "cu_seqlens_k": np.array([0, 700]), "backend": "numba"}
    whole = attention(query, key, value, cu_seqlens=np.array([0, 700]), **options)
    part = attention(query[333:], key, value, cu_seqlens=np.array([0, 367]), **options)
    np.testing.assert_array_equal(part, whole[333:])


def test_slopes_of_alibi():
    np.testing.assert_array_equal(_alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_array_equal(_alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    table = alibi_positions(2, 3)
    np.testing.assert_array_equal(table.distance_rows, [2, 1, 0, 1, 2])
    assert_close(table.position_bias, -np.arange(3)[:, None] * np.array([2.0**-4, 2.0**-8]))


@pytest.mark.parametrize("window", [-1, (1,), (1, -2), 1.5, True, "7"])
def test_windows_that_are_none(window):
    query = normal(1, (1, 2, 9, 4), np.float32)
    with pytest.raises((TypeError, ValueError), match="window"):
        attention(query, query, query, window=window, backend="numpy")


@pytest.mark.parity
def test_buckets_are_those_of_transformers():
    torch, mpnet = pytest.importorskip("torch"), pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    distances = np.arange(-600, 601)
    expected = mpnet.MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances), 32, 128).numpy()
    np.testing.assert_array_equal(bucketed_distances()[np.clip(distances, -128, 128) + 128], expected)
