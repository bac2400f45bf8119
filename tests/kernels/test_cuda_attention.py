"""CUDA attention in the emulator (and on a GPU where there is one) against the float64 definition."""

import functools

import ml_dtypes
import numpy as np
import pytest

from bertcore.kernels import _cuda
from bertcore.kernels.attention import cuda as attention_cuda
from bertcore.kernels.attention import reference
from tests.cuda_emulator import Emulator
from tests.kernels.attention_forms import forward
from tests.tolerances import assert_close

from .cuda_support import EmulatorTarget

FLOAT16, BFLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


run_cuda = functools.partial(forward, attention_cuda)


@pytest.fixture(params=[FLOAT16, BFLOAT16, FLOAT32], ids=str)
def dtype(request):
    return request.param


def normal(seed, *shape, dtype):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dense(dtype, batch=1, heads=1, length=65, length_k=None, head_dim=64):
    """query, key, value of (batch, heads, length, head_dim)"""
    lengths = (length, *[length if length_k is None else length_k] * 2)
    return [normal(seed, batch, heads, each, head_dim, dtype=dtype) for seed, each in enumerate(lengths)]


def offsets(*lengths):
    return np.cumsum([0, *lengths]).astype(np.int32)


def wide(array):
    return array if array is None or array.dtype.kind in "bi" else array.astype(np.float64)


def check(
    cuda, query, key, value, cu_seqlens=None, cu_seqlens_k=None, attn_mask=None, bias=None, is_causal=False, scale=None
):
    """Compares output, lse and probabilities with the reference's; returns the output in float64."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if cu_seqlens is not None and cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens
    arrays = (query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias)
    expected = forward(reference, *map(wide, arrays), is_causal, scale, True, None)
    found = cuda.run(run_cuda, *arrays, is_causal, scale, True, None)
    tokens_first = found[0].transpose(0, 2, 1, 3) if cu_seqlens is not None else found[0]
    assert tokens_first.flags.c_contiguous
    assert found[1].dtype == np.float32
    assert_close(found[0], expected[0], name="output")
    assert_close(found[1], expected[1], name="lse", at_least=1)
    # exp() multiplies the rounding of a score by its size.
    assert_close(found[2], expected[2], name="probabilities", factor=4)
    return wide(found[0])


HEAD_DIMS = (1, 39, 48, 64, 128, 160)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(cuda, dtype, head_dim):
    check(cuda, *dense(dtype, heads=2, length=5, length_k=70, head_dim=head_dim))
    check(cuda, *dense(dtype, length=66, length_k=40, head_dim=head_dim), is_causal=True)


@pytest.mark.parametrize("length, length_k", [(1, 65), (63, 63), (65, 1), (65, 0), (130, 130)])
def test_lengths(cuda, dtype, length, length_k):
    arrays = dense(dtype, length=length, length_k=length_k, head_dim=32)
    check(cuda, *arrays)
    if length == length_k:
        check(cuda, *arrays, is_causal=True)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_two_strips_per_warp(cuda, head_dim):
    """Enough long sequences for the larger tiles; the last warps of the second tile have no query."""
    arrays = dense(FLOAT16, heads=4, length=150, head_dim=head_dim)
    mask, bias = (normal(seed, 1, 4, 150, 150, dtype=FLOAT16) for seed in (3, 4))
    check(cuda, *arrays, attn_mask=mask, bias=bias)
    check(cuda, *arrays, is_causal=True)
    if isinstance(cuda, EmulatorTarget):
        assert cuda.launches[0].kernel == f"attention_forward<__half, {head_dim}, 2>"


PACKED = (0, 1, 64, 0, 65, 3, 0)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_packed_views_of_a_fused_projection(cuda, dtype, is_causal):
    """Sequences of every length, query, key and value as slices of one (tokens, 3, heads, head_dim) array."""
    fused = normal(0, sum(PACKED), 3, 2, 48, dtype=dtype)
    views = [part.transpose(1, 0, 2)[None] for part in fused.transpose(1, 0, 2, 3)]
    assert not views[0].flags.c_contiguous
    check(cuda, *views, cu_seqlens=offsets(*PACKED), is_causal=is_causal)


def test_packed_views_that_no_vector_fits(cuda, dtype):
    fused = normal(0, sum(PACKED), 3, 2, 39, dtype=dtype)
    views = [part.transpose(1, 0, 2)[None] for part in fused.transpose(1, 0, 2, 3)]
    check(cuda, *views, cu_seqlens=offsets(*PACKED))


def test_packed_sequences_of_keys_with_lengths_of_their_own(cuda, dtype):
    lengths_k = (3, 0, 65, 0, 1, 8, 2)
    query = normal(0, 1, 2, sum(PACKED), 32, dtype=dtype)
    key, value = (normal(seed, 1, 2, sum(lengths_k), 32, dtype=dtype) for seed in (1, 2))
    check(cuda, query, key, value, offsets(*PACKED), offsets(*lengths_k))
    check(cuda, query, key, value, offsets(*PACKED), offsets(*lengths_k), is_causal=True)


@pytest.mark.parametrize("sequences", [33, 1100])
def test_finding_one_of_many_sequences(sequences):
    """More sequences than one, and than two steps of the search look at; many of them empty."""
    lengths = np.random.default_rng(0).integers(0, 3, sequences)
    arrays = [normal(seed, 1, 1, lengths.sum(), 8, dtype=FLOAT16) for seed in range(3)]
    arguments = (offsets(*lengths),) * 2
    with _cuda.use_runtime(Emulator()):
        output, *_ = run_cuda(*arrays, *arguments, None, None, False, 1.0, False, None)
    assert_close(output, forward(reference, *map(wide, arrays), *arguments, None, None, False, 1.0, False, None)[0])


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(cuda, dtype, kind):
    """With a bias, broadcast over heads; -inf hides; some rows see nothing and give zeros."""
    keep = np.random.default_rng(0).random((2, 1, 66, 70)) < 0.7
    keep[-1, -1, -1, :] = False
    added = np.where(keep, normal(1, *keep.shape, dtype=dtype), dtype.type(-np.inf))
    mask = np.broadcast_to(keep if kind == "bool" else added, (2, 2, 66, 70))
    bias = np.broadcast_to(normal(2, 1, 2, 1, 70, dtype=dtype), mask.shape)
    arrays = dense(dtype, batch=2, heads=2, length=66, length_k=70, head_dim=8)
    assert not check(cuda, *arrays, attn_mask=mask, bias=bias)[-1, -1, -1].any()


def test_packed_masks(cuda, dtype):
    """A mask and a bias of the longest sequence's size; what lies beyond a sequence's length is NaN and is ignored."""
    lengths = (5, 0, 66, 20)
    arrays = [normal(seed, 1, 2, sum(lengths), 40, dtype=dtype) for seed in range(3)]
    bias = normal(3, len(lengths), 2, 66, 66, dtype=dtype)
    for sequence, length in enumerate(lengths):
        bias[sequence, :, length:], bias[sequence, :, :, length:] = np.nan, np.nan
    mask = np.random.default_rng(0).random((len(lengths), 1, 66, 66)) < 0.5
    mask = np.broadcast_to(mask, (len(lengths), 2, 66, 66))
    check(cuda, *arrays, cu_seqlens=offsets(*lengths), attn_mask=mask, bias=bias, is_causal=True)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 4.0])
def test_scales(cuda, dtype, scale):
    """A negative scale turns the order of the scores; a large one makes the softmax sharp."""
    check(cuda, *dense(dtype, length=20, head_dim=16), scale=scale)


@pytest.mark.parametrize("hidden", [False, True], ids=["some", "all"])
def test_lowest_finite_masks(cuda, dtype, hidden):
    """The usual stand-in for -inf. Where it hides every key they count alike; in bfloat16 it could overflow."""
    lowest = ml_dtypes.finfo(dtype).min
    mask = np.zeros((1, 1, 10, 70), dtype)
    mask[..., 0 if hidden else 30 :] = lowest
    arrays = dense(dtype, length=10, length_k=70, head_dim=16)
    rest = (None, None, mask, None, False, 0.25, False)
    expected, *_ = forward(reference, *(array.astype(np.float32) for array in arrays), *rest, None)
    found, *_ = cuda.run(run_cuda, *arrays, *rest, None)
    assert_close(found, expected)


def test_nan_stays_in_its_row(cuda, dtype):
    query, key, value = dense(dtype, heads=2, length=70, head_dim=24)
    query[0, 1, 66, 3] = np.nan
    output = check(cuda, query, key, value)
    assert np.isnan(output[0, 1, 66]).all()
    assert np.isnan(output).sum() == 24
    key[0, 0, 2, 5] = np.nan
    assert np.isnan(check(cuda, query, key, value, is_causal=True)[0, 0, 2:]).all()


def test_infinite_scores(cuda, dtype):
    """+inf gives NaN like the definition (inf - inf); -inf from the products themselves hides."""
    query, key, value = dense(dtype, length=3, length_k=70, head_dim=1)
    query[:] = np.array([1, -1, 0.5], dtype)[None, None, :, None]
    key[0, 0, 65] = np.inf
    output = check(cuda, query, key, value)
    assert np.isnan(output[0, 0, [0, 2]]).all()
    assert np.isfinite(output[0, 0, 1]).all()


def test_head_dim_too_large(cuda):
    with pytest.raises(ValueError, match="head_dim 257, the CUDA kernels take at most 256"):
        cuda.run(run_cuda, *dense(FLOAT16, length=2, head_dim=257), *[None] * 4, False, 1.0, False, None)


@pytest.mark.slow  # the emulator compiles everything anew; test_cuda_linear.py has the same products
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_turing(dtype, head_dim):
    """What stands in for mma.sync and cp.async below sm_80."""
    check(EmulatorTarget(arch=75), *dense(dtype, length=20, length_k=70, head_dim=head_dim))


def test_shared_memory_fits_the_smallest_gpu():
    limit = 64 << 10  # sm_75
    assert max(attention_cuda.MMA.values()) <= limit
    assert max(shared_bytes for _, shared_bytes in attention_cuda.FP32.values()) <= limit
