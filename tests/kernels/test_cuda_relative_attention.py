"""CUDA relative attention in the emulator (and on a GPU where there is one) against the float64 definition."""

import functools

import ml_dtypes
import numpy as np
import pytest

from bertcore.kernels import _cuda
from bertcore.kernels.attention import cuda as attention_cuda
from bertcore.kernels.attention import reference, relative_cuda
from tests.cuda_emulator import Emulator
from tests.kernels.attention_forms import relative_attention, relative_attention_backward, relative_forward
from tests.tolerances import assert_close

from .cuda_support import EmulatorTarget

FLOAT16, BFLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
PACKED, PACKED_K = (1, 0, 37, 5), (4, 2, 41, 3)  # memory before the queries, keys alone, fewer keys than queries
ROWS = 7

# Which of position_key, position_query, query_for_position and segment_scores are there.
FORMS = {
    "deberta": ("position_key", "position_query"),
    "xlnet": ("position_key", "query_for_position", "segment_scores"),
    "keys only": ("position_key",),
    "queries only": ("position_query", "segment_scores"),
    "everything": ("position_key", "position_query", "query_for_position", "segment_scores"),
}


run_cuda = functools.partial(relative_forward, attention_cuda)


@pytest.fixture(params=[FLOAT16, BFLOAT16, FLOAT32], ids=str)
def dtype(request):
    return request.param


def normal(seed, *shape, dtype):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(dtype, form="everything", lengths=PACKED, lengths_k=PACKED_K, heads=2, head_dim=13, distances=25):
    """The arrays of a call, by name; each distance has a row of its own choosing."""
    tokens, tokens_k = sum(lengths), sum(lengths_k)
    shapes = {
        "query": (tokens, heads, head_dim),
        "key": (tokens_k, heads, head_dim),
        "value": (tokens_k, heads, head_dim),
        "position_key": (ROWS, heads, head_dim),
        "position_query": (ROWS, heads, head_dim),
        "query_for_position": (tokens, heads, head_dim),
        "segment_scores": (tokens, heads, 2),
    }
    there = {"query", "key", "value", *FORMS[form]}
    arrays = {
        name: normal(seed, *shape, dtype=dtype) if name in there else None
        for seed, (name, shape) in enumerate(shapes.items())
    }
    integers = np.random.default_rng(0)
    arrays["distance_rows"] = integers.integers(0, ROWS, distances, dtype=np.int32)
    for name, count in (("segment_ids", tokens), ("segment_ids_k", tokens_k)):
        arrays[name] = integers.integers(0, 3, count, dtype=np.int32) if "segment_scores" in there else None
    for name, each in (("cu_seqlens", lengths), ("cu_seqlens_k", lengths_k)):
        arrays[name] = np.cumsum([0, *each]).astype(np.int32)
    return arrays | {"attn_mask": None}


ORDER = (
    "query", "key", "value", "position_key", "position_query", "query_for_position", "distance_rows",
    "segment_ids", "segment_ids_k", "segment_scores", "cu_seqlens", "cu_seqlens_k", "attn_mask",
)  # fmt: skip


def arguments(arrays, scale=None, convert=lambda array: array):
    """In the order of `relative_forward`."""
    scale = (3 * max(arrays["query"].shape[-1], 1)) ** -0.5 if scale is None else scale
    return (*(convert(arrays[name]) for name in ORDER), scale)


def wide(array):
    return array if array is None or array.dtype.kind in "bi" else array.astype(np.float64)


def check(cuda, arrays, scale=None):
    """Compares output, lse and probabilities with the reference's; returns the output in float64."""
    expected = relative_forward(reference, *arguments(arrays, scale, wide))
    found = cuda.run(run_cuda, *arguments(arrays, scale))
    assert found[0].flags.c_contiguous
    assert found[1].dtype == np.float32
    assert_close(found[0], expected[0], name="output")
    assert_close(found[1], expected[1], name="lse", at_least=1)
    # exp() multiplies the rounding of a score by its size.
    assert_close(found[2], expected[2], name="probabilities", factor=4)
    return wide(found[0])


@pytest.mark.parametrize("form", FORMS)
def test_terms(cuda, dtype, form):
    check(cuda, inputs(dtype, form), scale=-0.2 if form == "xlnet" else None)


@pytest.mark.parametrize(
    "head_dim", [1, 40, 64, *(pytest.param(size, marks=pytest.mark.slow) for size in (32, 100, 128))]
)
def test_head_dims(cuda, dtype, head_dim):
    arrays = inputs(dtype, lengths=(19,), lengths_k=(35,), heads=1, head_dim=head_dim)
    check(cuda, arrays)
    if isinstance(cuda, EmulatorTarget):
        padded = next(size for size in (32, 64, 128) if size >= head_dim)
        name = {"float32": f"_fp32<{padded}>"}.get(dtype.name, f"<{_cuda.c_type(dtype)}, {padded}>")
        assert [launch.kernel for launch in cuda.launches] == [
            f"relative_attention_forward{name}",
            f"relative_attention_probs<{_cuda.c_type(dtype)}>",
        ]


@pytest.mark.parametrize(
    "length, length_k",
    [(0, 0), (0, 5), (5, 0), (1, 1), (1, 67), (67, 1), pytest.param(131, 67, marks=pytest.mark.slow)],
)
def test_lengths(cuda, dtype, length, length_k):
    """More than one tile of queries, and of keys; distances beyond those that have a row, on both sides."""
    check(cuda, inputs(dtype, "deberta", (length,), (length_k,), heads=1))


@pytest.mark.parametrize("distances", [1, 3, 301])
def test_distances(cuda, dtype, distances):
    check(cuda, inputs(dtype, "deberta", (40,), (40,), heads=1, distances=distances))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(cuda, dtype, kind):
    """Broadcast over the heads; a query that sees nothing gives zeros."""
    arrays = inputs(dtype)
    keep = np.random.default_rng(0).random((4, 1, 37, 41)) < 0.7
    keep[2, :, 36] = False
    added = np.where(keep, normal(1, *keep.shape, dtype=dtype), dtype.type(-np.inf))
    arrays["attn_mask"] = np.broadcast_to(keep if kind == "bool" else added, (4, 2, 37, 41))
    output = check(cuda, arrays)
    assert not output[37].any()
    assert output[36].any()


def test_views(cuda, dtype):
    """Slices of wider arrays, of which not every row begins on a vector boundary; offsets with a stride."""
    arrays = inputs(dtype, head_dim=24)
    for name in ("query", "key", "value", "position_key", "position_query", "query_for_position"):
        arrays[name] = np.concatenate([arrays[name]] * 2, axis=2)[..., 1:17]
    arrays["segment_scores"] = np.repeat(arrays["segment_scores"], 2, axis=0)[::2]
    for name in ("distance_rows", "segment_ids", "segment_ids_k", "cu_seqlens"):
        arrays[name] = np.repeat(arrays[name], 2)[::2]
    check(cuda, arrays)


def test_nan_stays_in_its_row(cuda, dtype):
    arrays = inputs(dtype, lengths=(37,), lengths_k=(41,))
    for name in ("query", "query_for_position"):
        arrays[name][20, 1, 3] = np.nan
        output = check(cuda, arrays)
        assert np.isnan(output[20, 1]).all()
        assert np.isnan(output).sum() == 13


def test_unknown_rows_are_not_read(dtype):
    """On a GPU the values of distance_rows are not checked: a row that is not there counts as zeros."""
    arrays = inputs(dtype, "deberta", head_dim=16)
    wrong = arrays["distance_rows"].copy()
    wrong[10], wrong[14] = -1, ROWS
    expected = dict(arrays, distance_rows=np.where((wrong < 0) | (wrong >= ROWS), ROWS, wrong))
    for name in ("position_key", "position_query"):
        expected[name] = np.concatenate([arrays[name], np.zeros_like(arrays[name][:1])])
    expected, *_ = relative_forward(reference, *arguments(expected, convert=wide))
    with _cuda.use_runtime(Emulator("random")):
        found, *_ = run_cuda(*arguments(dict(arrays, distance_rows=wrong)))
    assert_close(found, expected)


@pytest.mark.slow  # the emulator compiles everything anew; test_cuda_linear.py has the same products
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_turing(dtype, head_dim):
    """What stands in for mma.sync and cp.async below sm_80."""
    check(EmulatorTarget(arch=75), inputs(dtype, lengths=(20,), lengths_k=(37,), heads=1, head_dim=head_dim))


def test_shared_memory_fits_the_smallest_gpu():
    limit = 64 << 10  # sm_75
    assert max(relative_cuda.shared_memory(d, FLOAT32, 1, 1, 1) for d in relative_cuda.FP32) <= limit
    static = 256  # AddedScores and Place
    most = max(relative_cuda.shared_memory(d, FLOAT16, 1, 1, 1) for d in relative_cuda.MMA)
    assert most + static <= limit


def test_head_dim_too_large(cuda):
    with pytest.raises(ValueError, match="head_dim 129, the CUDA kernels take at most 128"):
        cuda.run(run_cuda, *arguments(inputs(FLOAT16, head_dim=129)))


def test_public_function():
    """Through the contract, where a plain call means one sequence; what CUDA does not have says so."""
    arrays = inputs(FLOAT32, "deberta", (7,), (7,))
    given = {name: arrays[name] for name in ORDER[3:7] if arrays[name] is not None}
    content = [arrays[name] for name in ("query", "key", "value")]
    with _cuda.use_runtime(Emulator()):
        output, lse = relative_attention(*content, **given, return_lse=True, backend="cupy")
        with pytest.raises(ValueError, match="return_components"):
            relative_attention(*content, **given, return_components=True, backend="cupy")
        with pytest.raises(NotImplementedError, match="attention_backward has no implementation"):
            names = {"query": content[0], "key": content[1], "value": content[2], "output": output, "lse": lse}
            relative_attention_backward(output, **names, **given, backend="cupy")
    given = {name: wide(array) for name, array in given.items()}
    assert_close(output, relative_attention(*map(wide, content), **given, backend="numpy"))
