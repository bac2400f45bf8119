"""The CUDA gradients under every schedule of the emulator, against reference.py in float64.

The cases of conformance/ reach the same functions through the public ones, under one schedule.
"""

import functools
import importlib

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.attention.arguments import UNLIMITED, Scoring
from bertcore.kernels.attention.positions import RelativePositions
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def implementations(operation):
    """The cuda.py and the reference.py of an operation."""
    return (importlib.import_module(f"{kernels.__name__}.{operation}.{name}") for name in ("cuda", "reference"))


def wide(value):
    is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
    return value.astype(np.float64) if is_float else value


def check(cuda, operation, *args):
    """`operation`_backward of both on these arguments; the gradients that cuda found."""
    on_cuda, reference = implementations(operation)
    found = cuda.run(getattr(on_cuda, f"{operation}_backward"), *args)
    expected = getattr(reference, f"{operation}_backward")(*map(wide, args))
    assert_gradients(found, expected)
    return found


def assert_gradients(found, expected):
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if other is None:
            assert one is None, index
        else:
            assert_close(one, other, name=f"gradient {index}", at_least=1, factor=3)


@pytest.mark.parametrize("shape", [(300, 39), (5, 1030)], ids=str)
@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm", "affine"])
def test_rows_with_parameters(cuda, dtype, operation, shape):
    """More rows than a chunk of the parameters' sums; rows of a warp and of a block."""
    grad, input, residual = (normal(seed, shape, dtype) for seed in range(3))
    weight, bias = (normal(seed, shape[1:], dtype) for seed in (4, 5))
    parameters = (weight,) if operation == "rms_norm" else (weight, bias)
    eps = () if operation == "affine" else (1e-3,)
    check(cuda, operation, grad, input, *parameters, *eps, residual)


@pytest.mark.parametrize("shape", [(7, 39), (2, 1030)], ids=str)
def test_softmax(cuda, dtype, shape):
    output = np.exp(normal(1, shape, np.float64))
    check(cuda, "softmax", normal(2, shape, dtype), (output / output.sum(axis=1, keepdims=True)).astype(dtype), -1)


def test_activations(cuda, dtype):
    grad, input, bias = normal(1, (140, 39), dtype), normal(2, (140, 39), dtype), normal(3, (39,), dtype)
    check(cuda, "activation", grad, input, "gelu", bias)
    check(cuda, "gated_activation", grad, normal(4, (140, 78), dtype), "silu", "second")


def test_dropout_layer_norm(cuda, dtype):
    arrays = (normal(seed, (9, 39), dtype) for seed in range(3))
    check(cuda, "dropout_layer_norm", *arrays, normal(4, (39,), dtype), None, 1e-3, 0.3, 7)


def test_embedding(cuda, dtype):
    """Runs within a chunk of sorted ids, across chunks and over several; an id outside the table."""
    ids = np.repeat([4, 0, 2, 1], [200, 3, 61, 40])[np.random.default_rng(0).permutation(304)].reshape(2, 152)
    grad = normal(1, (2, 152, 39), dtype) / 8
    added = np.ones((7, 39), dtype)
    on_cuda, reference = implementations("embedding")
    found = cuda.run(lambda *args: on_cuda.embedding_backward(*args, added.copy()), grad, ids, 7)
    assert_gradients(found, reference.embedding_backward(wide(grad), ids, 7, wide(added)))
    stray = np.where(ids == 4, np.where(np.arange(152) % 2, -1, 7), ids)
    found = cuda.run(on_cuda.embedding_backward, grad, stray, 7, None)
    assert not found[3:].any() and found[:3].any()


def test_cross_entropy(cuda, dtype):
    input, target = normal(1, (5, 1030), dtype, scale=3), np.array([7, -100, 0, 1029, 1030])
    lse = kernels.cross_entropy(wide(input), target[:4].repeat(2)[:5], return_lse=True, backend="numpy")[1]
    on_cuda, reference = implementations("cross_entropy")
    grads = np.arange(1, 6, dtype=np.float32)
    found = cuda.run(on_cuda.cross_entropy_backward, grads, input, target, lse.astype(np.float32), -100)
    expected = reference.cross_entropy_backward(grads[:4], wide(input)[:4], target[:4], lse[:4], -100)
    assert_gradients(found[:4], expected)
    assert np.isnan(found[4].astype(np.float32)).all()  # of a target that is no class


def test_linear(cuda, dtype):
    check(cuda, "linear", normal(1, (140, 39), dtype), normal(2, (140, 24), dtype), normal(3, (39, 24), dtype),
          normal(4, (39,), dtype), True)  # fmt: skip


# ---- attention -------------------------------------------------------------------------------------------------------

NO_WINDOW = UNLIMITED, UNLIMITED


def scoring_of(
    offsets=None, offsets_k=None, mask=None, bias=None, causal=False, window=NO_WINDOW, relative=None, p=0.0
):
    plain = Scoring(offsets, offsets_k, mask, bias, causal, window, relative, 0.3)
    return plain._replace(dropout_p=p, dropout_seed=2**63 + 5)


def check_attention(cuda, dtype, scoring, heads=2, heads_k=2, lengths=(40, 37), head_dim=13):
    """Of (batch, heads, length, head_dim) arrays; packed ones have a batch of one."""
    batch = 2 if scoring.cu_seqlens is None else 1
    query, grad = (normal(seed, (batch, heads, lengths[0], head_dim), dtype) for seed in (1, 2))
    key, value = (normal(seed, (batch, heads_k, lengths[1], head_dim), dtype) for seed in (3, 4))
    on_cuda, reference = implementations("attention")
    exact = [wide(it) for it in (query, key, value)]
    exactly = widened(scoring)
    expected, lse, *_ = reference.attention(*exact, exactly, False, False, None)
    if scoring.dropout_p:
        run = functools.partial(first, on_cuda.attention)
        assert_close(cuda.run(run, query, key, value, scoring, False, False, None), expected)
    arrays = grad, query, key, value, expected.astype(dtype), lse.astype(np.float32)
    found = cuda.run(flat, on_cuda.attention_backward, *arrays, scoring)
    expected = flat(reference.attention_backward, wide(grad), *exact, expected, lse, exactly)
    assert_gradients(found, expected)


def first(function, *args):
    return function(*args)[0]


def flat(function, *args):
    *grads, relative = function(*args)
    return *grads, *(() if relative is None else vars(relative).values())


def widened(scoring):
    relative = scoring.relative
    if relative is not None:
        relative = RelativePositions(**{name: wide(array) for name, array in vars(relative).items()})
    return scoring._replace(attn_mask=wide(scoring.attn_mask), bias=wide(scoring.bias), relative=relative)


def test_attention_of_ragged_sequences(cuda, dtype):
    offsets, offsets_k = np.array([0, 33, 33, 38, 40], np.int32), np.array([0, 30, 31, 31, 37], np.int32)
    check_attention(cuda, dtype, scoring_of(offsets, offsets_k))


def test_attention_of_shared_heads_in_windows(cuda, dtype):
    check_attention(cuda, dtype, scoring_of(causal=True, window=(3, 5)), heads=4)


@pytest.mark.parametrize("head_dim", [64, 65, 129])
def test_attention_of_wide_heads(cuda, head_dim):
    check_attention(cuda, DTYPES[0], scoring_of(), 1, 1, (40, 37), head_dim)


def test_attention_with_dropout(cuda, dtype):
    offsets = np.array([0, 1, 40, 90], np.int32)
    check_attention(cuda, dtype, scoring_of(offsets, offsets, p=0.3), lengths=(90, 90))
    check_attention(cuda, dtype, scoring_of(p=0.3), lengths=(5, 70))


def test_attention_with_masks_and_biases(cuda, dtype):
    mask = np.random.default_rng(5).random((2, 1, 40, 37)) < 0.7
    mask[0, 0, 3] = False
    mask = np.broadcast_to(mask, (2, 2, 40, 37))
    check_attention(cuda, dtype, scoring_of(mask=mask, bias=normal(6, (2, 2, 40, 37), dtype)))


def test_attention_with_biases_by_distance(cuda, dtype):
    rows = np.clip(np.arange(-6, 7) // 2, -2, 2).astype(np.int32) + 2
    relative = RelativePositions(rows, position_bias=normal(7, (5, 2), dtype))
    check_attention(cuda, dtype, scoring_of(relative=relative))
    offsets = np.array([0, 33, 33, 38, 40], np.int32)
    check_attention(cuda, dtype, scoring_of(offsets, offsets, relative=relative), lengths=(40, 40))


def test_attention_with_tables_and_segments(cuda, dtype):
    """Both tables, a vector of its own for positions, and segments, beside dropout."""
    rows = np.clip(np.arange(-6, 7) // 2, -2, 2).astype(np.int32) + 2
    tables = {name: normal(seed, (5, 2, 13), dtype) for seed, name in ((7, "position_key"), (8, "position_query"))}
    per_query = {
        "query_for_position": normal(9, (1, 2, 40, 13), dtype),
        "segment_scores": normal(10, (1, 2, 40, 2), dtype),
    }
    segments = (np.arange(40, dtype=np.int32)[None] % 7) // 4
    relative = RelativePositions(rows, **tables, **per_query, segment_ids=segments, segment_ids_k=segments)
    offsets = np.array([0, 33, 33, 38, 40], np.int32)
    check_attention(cuda, dtype, scoring_of(offsets, offsets, relative=relative, p=0.2), lengths=(40, 40))
    check_attention(cuda, dtype, scoring_of(relative=RelativePositions(rows, **tables)), lengths=(20, 70))
