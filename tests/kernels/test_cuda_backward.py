"""The CUDA gradients of attention under every schedule of the emulator; test_cuda_attention.py has a table of cases."""

import cupy
import numpy as np
import pytest

from bertcore.kernels import _cuda, alibi_positions
from bertcore.kernels.attention.cuda import backward as backward_cuda
from bertcore.kernels.attention.positions import RelativePositions
from tests.cuda_emulator import Emulator
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import backward
from tests.kernels.attention_forms import only
from tests.kernels.strategies import normal
from tests.kernels.test_cuda_attention import check_gradients, computed_gradients, dense, packed


def test_a_head_that_is_too_wide_is_refused():
    with pytest.raises(ValueError, match="head_dim 257, expected at most 256 on CUDA"):
        backward_cuda.check_head_dim(np.empty((1, 1, 1, 257)))


def test_tiles_out_of_sight_are_not_read(cuda, dtype):
    given = packed(dtype, (300,), heads=1, head_dim=64) | {"window": (9, 9), "grad": normal(4, (300, 1, 64), dtype)}
    clean = computed_gradients(cuda, given)
    for name in ("query", "key", "value", "grad"):
        given[name][256:] = np.nan
    for one, other in zip(clean, computed_gradients(cuda, given), strict=True):
        if one is not None:
            np.testing.assert_array_equal(one[:128], other[:128])
            assert np.isnan(other[256:]).all()


def test_a_sequence_has_the_same_bits_in_any_batch(cuda, dtype):
    given = packed(dtype, (33, 0, 70, 37), head_dim=32) | {"grad": normal(4, (140, 2, 32), dtype)}
    own, queries, _ = only(given, 2)
    together, alone = (computed_gradients(cuda, it) for it in (given, own | {"grad": given["grad"][queries]}))
    for one, other in zip(together, alone, strict=True):
        assert one is other is None or np.array_equal(one[queries], other)


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
