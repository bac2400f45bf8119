"""The CUDA gradients of relative tables, which are computed some heads at a time, against reference.py in float64."""

import itertools
from collections import deque
from dataclasses import replace

import cupy
import numpy as np
import pytest

from bertcore.execution.graph_cache import InferenceGraphs
from bertcore.kernels import attention, attention_backward
from bertcore.kernels._cuda.capture import Lifetimes
from bertcore.kernels.attention.cuda import relative as relative_cuda
from bertcore.kernels.attention.positions import OF_RELATIVE, RelativePositions
from tests.cuda_emulator.driverless import driverless, host
from tests.kernels.arrays import backward
from tests.kernels.cuda_support import DTYPES, wide
from tests.kernels.strategies import normal
from tests.refusals import refuses
from tests.tolerances import assert_close

TERMS = ("position_key", "position_query", "query_for_position", "segment_scores")
RAGGED = (39, 0, 1, 7, 160)  # tokens of sequences


def with_tables(dtype, heads, heads_k, lengths, terms=TERMS):
    """(grad_output, query, key, value), relative terms: of packed sequences or, without lengths, of a dense batch."""
    shape = (2, heads, 37, 24) if lengths is None else (sum(lengths), heads, 24)
    shape_k, per_segment = list(shape), (*shape[:-1], 2)
    shape_k[1] = heads_k
    grad, query, key, value = (normal(i, it, dtype) for i, it in enumerate((shape, shape, shape_k, shape_k)))
    rows = np.clip(np.arange(-31, 32) // 3, -8, 8).astype(np.int32) + 9  # no distance has the first row
    tables = {name: normal(seed, (19, heads, 24), dtype) for seed, name in enumerate(TERMS[:2], 5) if name in terms}
    if "query_for_position" in terms:
        tables["query_for_position"] = normal(8, shape, dtype)
    if "segment_scores" in terms:
        tokens = shape[:1] if lengths is not None else (2, 37)
        tables |= {"segment_scores": normal(9, per_segment, dtype)}
        tables |= {"segment_ids": (np.arange(np.prod(tokens), dtype=np.int32) % 7 // 4).reshape(tokens)}
    return (grad, query, key, value), RelativePositions(rows, **tables)


def widened_terms(relative):
    return RelativePositions(**{name: wide(array) for name, array in vars(relative).items()})


def on_backend(backend, arrays, relative, lengths, to=lambda array: array, **options):
    """The gradients, flat, of a forward and a backward by the public functions."""
    grad, *heads = map(to, arrays)
    terms = {name: getattr(relative, name) for name in OF_RELATIVE}
    relative = replace(relative, **{name: None if it is None else to(it) for name, it in terms.items()})
    options |= {"relative": relative, "backend": backend}
    if lengths is not None:
        options["cu_seqlens"] = to(np.cumsum((0, *lengths), dtype=np.int32))
    found = backward("attention", grad, *heads, **options)
    return [*found[:3], *(getattr(found.relative, name) for name in OF_RELATIVE)]


@pytest.fixture
def gpu():
    with driverless() as gpu:
        yield gpu


def batches_of(kernel, gpu):
    return [launch.grid[1] for launch in gpu.launches if kernel in launch.kernel]


HEADS = {  # heads of queries, heads of keys, lengths, options
    "ragged": (3, 3, RAGGED, {}),
    "ragged, shared, window": (4, 2, RAGGED, {"window": (40, 9), "dropout_p": 0.2}),
    "dense, shared, causal": (4, 2, None, {"is_causal": True, "dropout_p": 0.2}),
}


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
    heads, heads_k, lengths, options = HEADS[case]
    arrays, relative = with_tables(dtype, heads, heads_k, lengths)
    numpy_arrays, numpy_relative = [wide(array) for array in arrays], widened_terms(relative)
    expected = on_backend("numpy", numpy_arrays, numpy_relative, lengths, **options)
    found = {}
    for most in (0, relative_cuda.MOST_BYTES):
        monkeypatch.setattr(relative_cuda, "MOST_BYTES", most)
        gpu.launches.clear()
        found[most] = on_backend("cupy", arrays, relative, lengths, cupy.asarray, **options)
        at_once = heads // heads_k if most == 0 else heads
        assert batches_of("QUERIES", gpu) == batches_of("sum_segments", gpu) == [at_once] * (heads // at_once)
    for index, (one, some, all_heads) in enumerate(zip(expected, *found.values(), strict=True)):
        if one is not None:
            np.testing.assert_array_equal(host(some), host(all_heads), err_msg=str(index))
            assert_close(host(some), one, name=f"gradient {index}", at_least=1, factor=3)


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
    made, (arrays, relative) = InferenceGraphs(), with_tables(np.dtype(np.float32), 2, 2, (39, 0, 5))
    on_gpu, names = list(map(cupy.asarray, arrays)), ("distance_rows", "segment_ids", *TERMS)
    terms = RelativePositions(**{name: cupy.asarray(getattr(relative, name)) for name in names}, longest=40)

    def build(offsets):
        options = {"cu_seqlens": offsets, "relative": terms, "dropout_p": 0.3, "dropout_seed": 3}
        found = backward("attention", *on_gpu, **options)
        return (*found[:3], *(getattr(found.relative, name) for name in TERMS)), None

    assert made.run(1, "layout", build, cupy.zeros(4, np.int32), 44) is None
    gpu.waits.clear()
    for lengths in ((39, 0, 5), (1, 23, 20), (4, 40, 0)):
        found = made.run(1, "layout", build, cupy.asarray(np.cumsum((0, *lengths), dtype=np.int32)), 44)
        assert not gpu.waits
        expected = build(cupy.asarray(np.cumsum((0, *lengths), dtype=np.int32)))[0]
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_array_equal(host(one), host(other)[:44], err_msg=str(index))


@ONE_DTYPE
def test_a_longest_sequence_that_is_given(gpu, dtype):
    """A bound gives the same bits as the length; on a GPU nothing is written beyond one that is wrong."""
    for terms in (("position_key", "position_query"), ("segment_scores", "position_bias")):
        arrays, relative = with_tables(dtype, 2, 2, RAGGED, terms)
        if "position_bias" in terms:
            relative = replace(relative, position_bias=normal(3, (19, 2), dtype))
        found = []
        for longest in (None, 160, 170):
            gpu.waits.clear()
            found.append(on_backend("cupy", arrays, replace(relative, longest=longest), RAGGED, cupy.asarray))
            assert bool(gpu.waits) == (longest is None)
        for one, *others in zip(*found, strict=True):
            for other in others:
                np.testing.assert_array_equal(*(it if it is None else host(it) for it in (one, other)))
        on_backend("cupy", arrays, replace(relative, longest=50), RAGGED, cupy.asarray)


def test_a_longest_sequence_that_is_wrong():
    for longest, message in ((-1, "longest is -1"), (159, "longest is 159, expected at least 160")):
        arrays, relative = with_tables(np.dtype(np.float32), 2, 2, RAGGED)
        refuses(ValueError, message, on_backend, "numpy", arrays, replace(relative, longest=longest), RAGGED)
    with pytest.raises(TypeError, match=r"longest is 1\.5, expected an integer"):
        on_backend("numpy", arrays, replace(relative, longest=1.5), RAGGED)
