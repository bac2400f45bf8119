"""The CUDA gradients of attention under every schedule of the emulator; test_cuda_attention.py has a table of cases."""

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
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import backward
from tests.kernels.cuda_support import wide
from tests.kernels.strategies import normal
from tests.kernels.test_cuda_attention import check_gradients, dense, packed
from tests.tolerances import assert_close


def scoring_of(offsets=None, window=(UNLIMITED, UNLIMITED), p=0.0):
    return Scoring(offsets, offsets, None, None, False, window, None, 0.3)._replace(dropout_p=p, dropout_seed=2**63 + 5)


def flat(function, *args):
    *grads, relative = function(*args)
    return *grads, *(() if relative is None else vars(relative).values())


def test_a_head_that_is_too_wide_is_refused():
    with pytest.raises(ValueError, match="head_dim 257, expected at most 256 on CUDA"):
        backward_cuda.check_head_dim(np.empty((1, 1, 1, 257)))


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
    scoring = scoring_of(offsets, window=(9, 9))
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
    together = forward_and_gradients(cuda, scoring_of(offsets), *arrays)
    part = forward_and_gradients(cuda, scoring_of(alone), *(array[:, :, 33:103] for array in arrays))
    for one, other in zip(together, part, strict=True):
        np.testing.assert_array_equal(one[:, :, 33:103], other)


@pytest.mark.parametrize("head_dim", [64, 100, 160])
def test_biases_of_every_distance(cuda, dtype, head_dim):
    lengths = {"lengths": (1, 0, 39, 67, 0), "lengths_k": (39, 1, 0, 100, 3)}
    sizes = {"heads": 1, "head_dim": head_dim, "form": "biases by distance"}
    given = packed(dtype, **lengths, **sizes, distances=321)
    given |= {"distance_rows": np.arange(321), "position_bias": normal(7, (321, 1), dtype), "scale": 0.3}
    for more in ({"dropout_p": 0.2, "dropout_seed": 2**63 + 5}, {"window": (20, 3)}):
        check_gradients(cuda, given | more)
    check_gradients(
        cuda, dense(dtype, 1, 1, 70, 37, head_dim, "biases by distance") | {"is_causal": True, "scale": 0.3}
    )


class RaceTarget:
    def run(self, function, *args):
        with _cuda.use_runtime(Emulator(races=True)):
            return function(*args)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 160])  # a warp for 16 rows, and two that share them
def test_diagonals_have_no_races(dtype, head_dim):
    test_biases_of_every_distance(RaceTarget(), dtype, head_dim)


def test_more_rows_of_tables_than_a_warp_has_threads(cuda, dtype):
    given = packed(dtype, (20, 0, 7), (70, 3, 7), form="deberta", distances=39)
    tables = {name: normal(seed, (39, 2, 13), dtype) for seed, name in ((7, "position_key"), (8, "position_query"))}
    check_gradients(cuda, given | tables | {"distance_rows": np.arange(39)})


@pytest.mark.slow
def test_sums_by_tables_have_no_races(dtype):
    test_more_rows_of_tables_than_a_warp_has_threads(RaceTarget(), dtype)
    check_gradients(RaceTarget(), packed(dtype, (33, 0, 5, 2), form="dropout, all"))


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
