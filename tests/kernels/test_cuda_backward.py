"""The CUDA gradients of attention under every schedule of the emulator, against reference.py in float64.

The cases of conformance/ reach the same functions through the public ones, under one schedule.
"""

import functools

import cupy
import numpy as np
import pytest

from bertcore.kernels import _cuda, alibi_positions
from bertcore.kernels.attention import cuda as on_cuda
from bertcore.kernels.attention import reference
from bertcore.kernels.attention.arguments import UNLIMITED, Scoring
from bertcore.kernels.attention.cuda import backward as backward_cuda
from bertcore.kernels.attention.positions import RelativePositions
from tests.cuda_emulator import Emulator
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.kernels.arrays import backward
from tests.kernels.cuda_support import wide
from tests.kernels.strategies import normal
from tests.tolerances import assert_close, assert_same_arrays

NO_WINDOW = UNLIMITED, UNLIMITED


def scoring_of(
    offsets=None, offsets_k=None, mask=None, bias=None, causal=False, window=NO_WINDOW, relative=None, p=0.0
):
    plain = Scoring(offsets, offsets_k, mask, bias, causal, window, relative, 0.3)
    return plain._replace(dropout_p=p, dropout_seed=2**63 + 5)


def check(cuda, dtype, scoring, heads=2, heads_k=2, lengths=(40, 37), head_dim=13):
    """Of (batch, heads, length, head_dim) arrays; packed ones have a batch of one."""
    batch = 2 if scoring.cu_seqlens is None else 1
    query, grad = (normal(seed, (batch, heads, lengths[0], head_dim), dtype) for seed in (1, 2))
    key, value = (normal(seed, (batch, heads_k, lengths[1], head_dim), dtype) for seed in (3, 4))
    exact = [wide(it) for it in (query, key, value)]
    exactly = widened(scoring)
    expected, lse, *_ = reference.attention(*exact, exactly, False, False, None)
    if scoring.dropout_p:
        run = functools.partial(first, on_cuda.attention)
        assert_close(cuda.run(run, query, key, value, scoring, False, False, None), expected)
    arrays = grad, query, key, value, expected.astype(dtype), lse.astype(np.float32)
    found = cuda.run(flat, on_cuda.attention_backward, *arrays, scoring, None)
    expected = flat(reference.attention_backward, wide(grad), *exact, expected, lse, exactly, None)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if other is None:
            assert one is None, index
        else:
            assert_close(one, other, name=f"gradient {index}", at_least=1, factor=3)


def in_views(function, *args):
    """`flat`, whose first three gradients are views of one array beside something else."""
    *arrays, scoring, _ = args
    of_each = [array.shape for array in arrays[1:4]]
    if scoring.cu_seqlens is None:
        joined = [np.full((*shape[:2], shape[2] + 1, shape[3]), 7, arrays[0].dtype) for shape in of_each]
        out, beside = [array[:, :, 1:] for array in joined], [array[:, :, :1] for array in joined]
    else:
        counts = [heads for _, heads, _, _ in of_each]
        joined = np.full((of_each[0][2], sum(counts) + 1, of_each[0][3]), 7, arrays[0].dtype)
        *out, rest = np.split(joined, np.cumsum(counts), axis=1)
        out, beside = [array.transpose(1, 0, 2)[None] for array in out], [rest]
    found = flat(function, *arrays, scoring, tuple(out))
    assert all((array == 7).all() for array in beside)
    return found


@pytest.mark.parametrize("offsets", [None, np.array([0, 33, 33, 40], np.int32)], ids=["dense", "packed"])
@pytest.mark.parametrize("heads_k", [2, 1])
def test_gradients_are_written_where_they_are_wanted(cuda, dtype, offsets, heads_k):
    scoring = scoring_of(offsets, offsets, p=0.2)
    for lengths in ((40, 40), (40, 0) if offsets is None else (0, 0)):
        if lengths[0] == 0:
            scoring = scoring_of(offsets[:1], offsets[:1])
        batch = 2 if offsets is None else 1
        query, grad, output = (normal(seed, (batch, 2, lengths[0], 13), dtype) for seed in (1, 2, 3))
        key, value = (normal(seed, (batch, heads_k, lengths[1], 13), dtype) for seed in (4, 5))
        lse = np.zeros((batch, 2, lengths[0], 2), np.float32)
        given = grad, query, key, value, output, lse, scoring, None
        expected = cuda.run(flat, on_cuda.attention_backward, *given)
        assert_same_arrays(cuda.run(in_views, on_cuda.attention_backward, *given), expected)
        assert lengths[1] or not any(array.any() for array in expected[:3])


def first(function, *args):
    return function(*args)[0]


def flat(function, *args):
    *grads, relative = function(*args)
    return *grads, *(() if relative is None else vars(relative).values())


def widened(scoring):
    relative = None if scoring.relative is None else widened_terms(scoring.relative)
    return scoring._replace(attn_mask=wide(scoring.attn_mask), bias=wide(scoring.bias), relative=relative)


def widened_terms(relative):
    return RelativePositions(**{name: wide(array) for name, array in vars(relative).items()})


def test_ragged_sequences(cuda, dtype):
    offsets, offsets_k = np.array([0, 33, 33, 38, 40], np.int32), np.array([0, 30, 31, 31, 37], np.int32)
    check(cuda, dtype, scoring_of(offsets, offsets_k))


def test_shared_heads_in_windows(cuda, dtype):
    check(cuda, dtype, scoring_of(causal=True, window=(3, 5)), heads=4)


def test_a_head_that_is_too_wide_is_refused():
    with pytest.raises(ValueError, match="head_dim 257, the CUDA kernels take at most 256"):
        backward_cuda.check_head_dim(np.empty((1, 1, 1, 257)))


@pytest.mark.parametrize("head_dim", [32, 64, 65, 160])
def test_head_dims(cuda, dtype, head_dim):
    check(cuda, dtype, scoring_of(window=(9, 20)), 1, 1, (70, 37), head_dim)
    check(cuda, dtype, scoring_of(bias=normal(6, (2, 1, 7, 39), dtype)), 1, 1, (7, 39), head_dim)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (1, 1), (67, 131), (131, 3)], ids=str)
def test_lengths(cuda, dtype, lengths):
    check(cuda, dtype, scoring_of(), 1, 1, lengths)
    offsets = [np.array([0, length, length], np.int32) for length in lengths]
    check(cuda, dtype, scoring_of(*offsets, causal=True), 1, 1, lengths)


def test_views(cuda, dtype):
    mask = np.random.default_rng(5).random((2, 2, 37, 40)) < 0.8
    check(cuda, dtype, scoring_of(mask=mask.swapaxes(2, 3)), head_dim=39)


def test_scores_in_the_thousands(cuda, dtype):
    """The peak is kept apart from the logarithm: their sum would round away what the probabilities differ by."""
    query, key = (np.full((1, 1, 70, 16), value, dtype) for value in (40, 12))
    key[..., 0] += np.arange(70) % 8 / 8
    value, grad = (normal(seed, (1, 1, 70, 16), dtype) for seed in (4, 2))
    scoring = scoring_of()._replace(scale=0.5)  # near 3,840
    exact = [wide(it) for it in (query, key, value)]
    output, lse, *_ = reference.attention(*exact, scoring, False, False, None)
    arrays = query, key, value, output.astype(dtype), lse.astype(np.float32)
    found = cuda.run(flat, on_cuda.attention_backward, grad, *arrays, scoring, None)
    expected = reference.attention_backward(wide(grad), *exact, output, lse, scoring, None)[2]
    assert_close(found[2], expected, name="grad_value", at_least=1)


def forward_and_gradients(cuda, scoring, query, key, value, grad):
    """(grad_query, grad_key, grad_value) of one packed call and what its own forward kept."""

    def run(*arrays):
        output, lse, *_ = on_cuda.attention(*arrays[:3], scoring, False, False, None)
        return on_cuda.attention_backward(arrays[3], *arrays[:3], output, lse, scoring, None)[:3]

    return cuda.run(run, query, key, value, grad)


def test_tiles_out_of_sight_are_not_read(cuda, dtype):
    offsets = np.array([0, 300], np.int32)
    scoring = scoring_of(offsets, offsets, window=(9, 9))
    arrays = [normal(seed, (1, 1, 300, 64), dtype) for seed in range(4)]
    clean = forward_and_gradients(cuda, scoring, *arrays)
    for array in arrays:
        array[:, :, 256:] = np.nan
    for one, other in zip(clean, forward_and_gradients(cuda, scoring, *arrays), strict=True):
        np.testing.assert_array_equal(one[:, :, :128], other[:, :, :128])
        assert np.isnan(other[:, :, 256:]).all()


def test_a_sequence_has_the_same_bits_in_any_batch(cuda, dtype):
    arrays = [normal(seed, (1, 2, 140, 32), dtype) for seed in range(4)]
    offsets = np.array([0, 33, 33, 103, 140], np.int32)
    alone = np.array([0, 70], np.int32)
    together = forward_and_gradients(cuda, scoring_of(offsets, offsets), *arrays)
    part = forward_and_gradients(cuda, scoring_of(alone, alone), *(array[:, :, 33:103] for array in arrays))
    for one, other in zip(together, part, strict=True):
        np.testing.assert_array_equal(one[:, :, 33:103], other)


def test_with_dropout(cuda, dtype):
    offsets = np.array([0, 1, 40, 90], np.int32)
    check(cuda, dtype, scoring_of(offsets, offsets, p=0.3), lengths=(90, 90))
    check(cuda, dtype, scoring_of(p=0.3), lengths=(5, 70))


def test_with_masks_and_biases(cuda, dtype):
    mask = np.random.default_rng(5).random((2, 1, 40, 37)) < 0.7
    mask[0, 0, 3] = False
    mask = np.broadcast_to(mask, (2, 2, 40, 37))
    check(cuda, dtype, scoring_of(mask=mask, bias=normal(6, (2, 2, 40, 37), dtype)))


def test_with_biases_by_distance(cuda, dtype):
    rows = np.clip(np.arange(-6, 7) // 2, -2, 2).astype(np.int32) + 2
    relative = RelativePositions(rows, position_bias=normal(7, (5, 2), dtype))
    check(cuda, dtype, scoring_of(relative=relative))
    offsets = np.array([0, 33, 33, 38, 40], np.int32)
    check(cuda, dtype, scoring_of(offsets, offsets, relative=relative), lengths=(40, 40))


@pytest.mark.parametrize("head_dim", [64, 100, 160])
def test_biases_of_every_distance(cuda, dtype, head_dim):
    rows = np.arange(2 * 160 + 1, dtype=np.int32)
    relative = RelativePositions(rows, position_bias=normal(7, (len(rows), 1), dtype))
    offsets, offsets_k = np.array([0, 1, 1, 40, 107, 107], np.int32), np.array([0, 39, 40, 40, 140, 143], np.int32)
    for given in ({"p": 0.2}, {"window": (20, 3)}):
        check(cuda, dtype, scoring_of(offsets, offsets_k, relative=relative, **given), 1, 1, (107, 143), head_dim)
    check(cuda, dtype, scoring_of(relative=relative, causal=True), 1, 1, (70, 37), head_dim)


class RaceTarget:
    def run(self, function, *args):
        with _cuda.use_runtime(Emulator(races=True)):
            return function(*args)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 160])  # a warp for 16 rows, and two that share them
def test_diagonals_have_no_races(dtype, head_dim):
    test_biases_of_every_distance(RaceTarget(), dtype, head_dim)


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_biases_by_distance_take_no_array_of_scores(dtype):
    with driverless(emulated=False) as gpu:
        array = cupy.zeros((2, 3, 512, 32), dtype)
        relative = alibi_positions(3, 512, dtype)
        relative = RelativePositions(
            cupy.asarray(relative.distance_rows), position_bias=cupy.asarray(relative.position_bias)
        )
        backward("attention", *[array] * 4, relative=relative)
        sizes = {arg.size for launch in gpu.launches for arg in launch.args if isinstance(arg, cupy.ndarray)}
    assert max(sizes) < 2 * 3 * 512 * 512 / 8


def test_with_tables_and_segments(cuda, dtype):
    rows = np.clip(np.arange(-6, 7) // 2, -2, 2).astype(np.int32) + 2
    tables = {name: normal(seed, (5, 2, 13), dtype) for seed, name in ((7, "position_key"), (8, "position_query"))}
    per_query = {
        "query_for_position": normal(9, (1, 2, 40, 13), dtype),
        "segment_scores": normal(10, (1, 2, 40, 2), dtype),
    }
    segments = (np.arange(40, dtype=np.int32)[None] % 7) // 4
    relative = RelativePositions(rows, **tables, **per_query, segment_ids=segments, segment_ids_k=segments)
    offsets = np.array([0, 33, 33, 38, 40], np.int32)
    check(cuda, dtype, scoring_of(offsets, offsets, relative=relative, p=0.2), lengths=(40, 40))
    check(cuda, dtype, scoring_of(relative=RelativePositions(rows, **tables)), lengths=(20, 70))
    tables = {name: normal(seed, (39, 2, 13), dtype) for seed, name in ((7, "position_key"), (8, "position_query"))}
    relative = RelativePositions(np.arange(39, dtype=np.int32), **tables)  # more rows than a warp has threads
    check(cuda, dtype, scoring_of(relative=relative), lengths=(20, 70))


@pytest.mark.slow
def test_sums_by_tables_have_no_races(dtype):
    test_with_tables_and_segments(RaceTarget(), dtype)
