"""The CUDA gradients of relative tables, which are computed some heads at a time, against reference.py in float64."""

import itertools
from collections import deque

import cupy
import numpy as np
import pytest

from bertcore.execution.graph_cache import InferenceGraphs
from bertcore.kernels import attention, attention_backward
from bertcore.kernels._cuda.capture import Lifetimes
from bertcore.kernels.attention.cuda import relative as relative_cuda
from bertcore.kernels.attention.positions import RelativePositions
from tests.cuda_emulator.driverless import driverless, host
from tests.kernels.attention_forms import ROWS, in_float64
from tests.kernels.cuda_support import DTYPES
from tests.kernels.strategies import normal
from tests.kernels.test_cuda_attention import dense, gradients, on_gpu, packed
from tests.refusals import refuses
from tests.tolerances import assert_close

TERMS = ("position_key", "position_query", "query_for_position", "segment_scores")
RAGGED = (39, 0, 1, 7, 160)  # tokens of sequences


def with_tables(dtype, lengths, terms=TERMS, heads=2):
    """Arguments with a gradient: packed sequences with terms of these names, and without masks."""
    given = packed(dtype, lengths, heads=heads, head_dim=24, form="relative terms", distances=63)
    given["position_bias"] = normal(3, (ROWS, heads), dtype)
    absent = {"attn_mask", "cu_seqlens_k", "position_bias", *TERMS} - {*terms}
    if "segment_scores" not in terms:
        absent |= {"segment_ids", "segment_ids_k"}
    return with_gradient({name: it for name, it in given.items() if name not in absent})


def with_gradient(given):
    return given | {"grad": normal(4, given["query"].shape, given["query"].dtype)}


def assert_same_bits(found, expected):
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one is None) == (other is None), index
        if one is not None:
            np.testing.assert_array_equal(host(one), host(other)[: len(one)], err_msg=str(index))


@pytest.fixture
def gpu():
    with driverless() as gpu:
        yield gpu


def batches_of(kernel, gpu):
    return [launch.grid[1] for launch in gpu.launches if kernel in launch.kernel]


HEADS = {  # heads of queries, those of them that share one of the keys, and the arguments in a dtype
    "ragged": (3, 1, lambda dtype: with_tables(dtype, RAGGED, heads=3)),
    "ragged, shared, window": (4, 2, lambda dtype: with_gradient(packed(dtype, RAGGED, form="dropout, all"))),
    "dense, shared, causal": (
        *(4, 2), lambda dtype: with_gradient(dense(dtype, 2, 2, 37, None, 24, "dropout, all") | {"is_causal": True})
    ),
}  # fmt: skip


ONE_DTYPE = pytest.mark.parametrize(
    "dtype", [DTYPES[1], *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES[::2])], ids=str
)
BY_DEFAULT = {("ragged, shared, window", np.dtype(np.float16)), ("dense, shared, causal", np.dtype(np.float32))}


@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        pytest.param(dtype, case, id=f"{case}-{dtype}", marks=[] if (case, dtype) in BY_DEFAULT else pytest.mark.slow)
        for case, dtype in itertools.product(HEADS, DTYPES)
    ],
)
def test_some_heads_at_a_time(gpu, monkeypatch, dtype, case):
    heads, shared, make = HEADS[case]
    given, found = make(dtype), []
    for most in (0, relative_cuda.MOST_BYTES):
        monkeypatch.setattr(relative_cuda, "MOST_BYTES", most)
        gpu.launches.clear()
        found.append(gradients("cupy", on_gpu(given)))
        at_once = shared if most == 0 else heads
        assert batches_of("QUERIES", gpu) == batches_of("sum_segments", gpu) == [at_once] * (heads // at_once)
    assert_same_bits(*found)
    for index, (one, other) in enumerate(zip(found[0], gradients("numpy", in_float64(given)), strict=True)):
        if other is not None:
            assert_close(host(one), other, name=f"gradient {index}", at_least=1, factor=3)


def bytes_at_once(function):
    """The most bytes that the arrays a function makes take together."""
    lifetimes = Lifetimes()
    with cupy.cuda.using_allocator(lifetimes.allocate):
        results = function()
    return lifetimes.plan(tuple(it for it in results if it is not None)).nbytes


@pytest.mark.parametrize("lengths", [(512, 512), (512, *[33] * 20)], ids=["full", "ragged"])
def test_memory_of_tables(monkeypatch, lengths):
    """Of one head: 4 bytes a token for each row of both tables, and for each key of the longest sequence."""
    monkeypatch.setattr(relative_cuda, "MOST_BYTES", 0)
    tokens, heads, rows, size = sum(lengths), 4, 512, 16
    with driverless(emulated=False) as gpu:
        gpu.launches = deque(maxlen=0)  # a longer one would keep their arguments alive
        array, table = cupy.zeros((tokens, heads, size), np.float32), cupy.zeros((rows, heads, size), np.float32)
        relative = RelativePositions(cupy.zeros(1023, np.int32), table, table)
        offsets = cupy.asarray(np.cumsum((0, *lengths), dtype=np.int32))
        _, saved = attention(*[array] * 3, cu_seqlens=offsets, relative=relative, save=True)

        def run():
            found = attention_backward(array, saved)
            return [*found[:3], found.relative.position_key, found.relative.position_query]

        taken = bytes_at_once(run)
    results, of_head = 3 * array.nbytes + 2 * table.nbytes, 4 * tokens * (2 * rows + 512)
    assert results + of_head < taken < results + of_head + array.nbytes


def test_tables_in_a_graph(gpu):
    """With `longest` nothing is read, and each launch computes what the offsets then say."""
    gpu.launches = deque(maxlen=0)  # a longer one would keep their arguments alive
    made, given = InferenceGraphs(), with_tables(np.dtype(np.float32), (39, 0, 5))
    given = on_gpu(given)

    def build(offsets):
        options = {"cu_seqlens": offsets, "longest": 40, "dropout_p": 0.3, "dropout_seed": 3}
        return tuple(it for it in gradients("cupy", given | options) if it is not None), None

    assert made.run(1, "layout", build, cupy.zeros(4, np.int32), 44) is None
    gpu.waits.clear()
    for lengths in ((39, 0, 5), (1, 23, 20), (4, 40, 0)):
        found = made.run(1, "layout", build, cupy.asarray(np.cumsum((0, *lengths), dtype=np.int32)), 44)
        assert not gpu.waits
        assert_same_bits(found, build(cupy.asarray(np.cumsum((0, *lengths), dtype=np.int32)))[0])


@ONE_DTYPE
def test_a_longest_sequence_that_is_given(gpu, dtype):
    """A bound gives the same bits as the length; on a GPU nothing is written beyond one that is wrong."""
    for terms in (("position_key", "position_query"), ("segment_scores", "position_bias")):
        given, found = with_tables(dtype, RAGGED, terms), []
        for longest in (None, 160, 170):
            gpu.waits.clear()
            found.append(gradients("cupy", on_gpu(given | {"longest": longest})))
            assert bool(gpu.waits) == (longest is None)
        for other in found[1:]:
            assert_same_bits(found[0], other)
        gradients("cupy", on_gpu(given | {"longest": 50}))


def test_a_longest_sequence_that_is_wrong():
    given = with_tables(np.dtype(np.float32), RAGGED)
    for longest, error, message in (
        (-1, ValueError, "longest is -1"),
        (159, ValueError, "longest is 159, expected at least 160"),
        (1.5, TypeError, r"longest is 1\.5, expected an integer"),
    ):
        refuses(error, message, gradients, "numpy", given | {"longest": longest})
