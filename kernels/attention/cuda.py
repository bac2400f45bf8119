"""CUDA backend of attention, forward: float16 and bfloat16 on tensor cores, float32 by FMA; reference.py defines it.

Nothing here reads an array: the launches depend on shapes and strides alone, so that no call waits for the GPU. The one
exception is return_probs of packed sequences, whose result's very shape is on the device.
"""

import numpy as np

from .. import _cuda

# What the kernels are instantiated for, and the bytes of shared memory each takes (Tiling in tensor_cores.cuh,
# Fp32Tiling in fp32.cuh): {(padded head_dim, strips): bytes} on tensor cores, {padded head_dim: (queries per block,
# bytes)} in float32.
MMA = {(32, 1): 15360, (32, 2): 20480, (64, 1): 27648, (64, 2): 36864, (128, 2): 52224, (256, 1): 50688}
FP32 = {32: (64, 36864), 64: (64, 53248), 128: (64, 65536), 256: (32, 65536)}
MAX_HEAD_DIM = 256
STRIP_ROWS = 64  # queries per block and strip

THREADS = 128
PROBS_TILE, PROBS_THREADS = 32, 256
BOOL_MASK, FLOAT_MASK = 1, 2  # of problem.cuh

INSTANTIATIONS = [
    *(f"attention_forward<{dtype}, {d}, {strips}>" for dtype in ("__half", "__nv_bfloat16") for d, strips in MMA),
    *(f"attention_forward_fp32<{head_dim}>" for head_dim in FP32),
    *(f"attention_probs<{dtype}>" for dtype in _cuda.C_TYPES.values()),
]
KERNELS = _cuda.Module(__file__, "attention.cu", instantiations=INSTANTIATIONS)

PROBLEM = np.dtype(
    [
        *((name, np.int64, 3) for name in ("query", "key", "value")),
        *((name, np.int64, 4) for name in ("attn_mask", "bias")),
        *((name, np.int32) for name in ("heads", "sequences", "length", "length_k", "head_dim", "mask_kind")),
        ("scale", np.float32),
        ("is_causal", np.bool_),
    ],
    align=True,
)
"""struct Problem of problem.cuh."""


def attention(
    query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale, return_probs, compute_dtype
):
    """(output, lse, probabilities or None); compute_dtype must be None."""
    xp = _cuda.array_module(query)
    batch, heads, length, head_dim = query.shape
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {head_dim}, the CUDA kernels take at most {MAX_HEAD_DIM}")
    if cu_seqlens is None:
        output = xp.empty(query.shape, dtype=query.dtype)
    else:
        output = xp.empty((length, heads, head_dim), dtype=query.dtype).transpose(1, 0, 2)[None]
        cu_seqlens, cu_seqlens_k = map(xp.ascontiguousarray, (cu_seqlens, cu_seqlens_k))
    lse = xp.empty((batch, heads, length), dtype=np.float32)
    query, key, value = map(_cuda.vector_rows, (query, key, value))
    problem = problem_struct(query, key, head_dim, cu_seqlens, attn_mask, is_causal, scale)
    set_strides(problem, query=query, key=key, value=value, attn_mask=attn_mask, bias=bias)
    offsets_and_masks = (cu_seqlens, cu_seqlens_k, attn_mask, bias)
    if lse.size:
        kernel, tiles, shared_bytes = _forward(problem, query.dtype, cu_seqlens is not None)
        args = (output, lse, query, key, value, *offsets_and_masks, problem)
        KERNELS.launch(kernel, (tiles, heads), (THREADS,), args, shared_bytes)
    probs = _probs(lse, query, key, offsets_and_masks, problem) if return_probs else None
    return output, lse, probs


def _forward(problem, dtype, packed):
    """(kernel, tiles of queries, bytes of shared memory)."""
    head_dim, length, sequences = (int(problem[name]) for name in ("head_dim", "length", "sequences"))

    def tiles(rows):
        return length // rows + sequences if packed else sequences * -(-length // rows)

    if dtype == np.float32:
        padded = next(size for size in FP32 if size >= head_dim)
        rows, shared_bytes = FP32[padded]
        return f"attention_forward_fp32<{padded}>", tiles(rows), shared_bytes
    padded = next(size for size, _ in MMA if size >= head_dim)
    # Two strips per warp halve the reads of keys and values; one suffices for short sequences, and occupies the GPU
    # better where there are few tiles.
    mean_length = length / sequences if packed else length
    many = tiles(2 * STRIP_ROWS) * int(problem["heads"]) >= 2 * _cuda.device().multiprocessors
    strips = 2 if mean_length > STRIP_ROWS and many else 1
    strips = strips if (padded, strips) in MMA else 3 - strips
    return (
        f"attention_forward<{_cuda.c_type(dtype)}, {padded}, {strips}>",
        tiles(strips * STRIP_ROWS),
        MMA[padded, strips],
    )


def _probs(lse, query, key, offsets_and_masks, problem):
    def launch(blocks, probs, longest):
        kernel = f"attention_probs<{_cuda.c_type(query.dtype)}>"
        args = (probs, lse, query, key, *offsets_and_masks, problem, *longest)
        KERNELS.launch(kernel, (blocks,), (PROBS_THREADS,), args)

    return compute_probs(launch, query, key, *offsets_and_masks[:2], int(problem["sequences"]))


def compute_probs(launch, query, key, cu_seqlens, cu_seqlens_k, sequences):
    """The probabilities that launch(blocks, probabilities, (longest query sequence, longest key sequence)) writes."""
    xp = _cuda.array_module(query)
    longest_q, longest_k = _longest(query, key, cu_seqlens, cu_seqlens_k)
    heads = query.shape[1]
    probs = xp.empty((sequences, heads, longest_q, longest_k), dtype=query.dtype)
    if probs.size:
        tiles = -(-longest_q // PROBS_TILE) * -(-longest_k // PROBS_TILE)
        launch(sequences * heads * tiles, probs, (np.int32(longest_q), np.int32(longest_k)))
    if probs.dtype == np.float32:
        # exp(score - lse) is off by as much as lse is rounded: 2e-4 at scores of 4000. Half precision hides that.
        total = probs.sum(axis=-1, keepdims=True)
        probs /= xp.where(total == 0, 1, total)
    return probs


def _longest(query, key, cu_seqlens, cu_seqlens_k):
    """Lengths of the longest sequence of queries and of keys; packed offsets are read, which synchronises."""
    if cu_seqlens is None:
        return query.shape[2], key.shape[2]
    lengths = (offsets[1:] - offsets[:-1] for offsets in (cu_seqlens, cu_seqlens_k))
    return tuple(int(each.max()) if each.size else 0 for each in lengths)


def problem_struct(query, key, head_dim, cu_seqlens, attn_mask, is_causal, scale):
    """The struct that the kernels take, but for the strides; `head_dim` without padding."""
    problem = np.zeros((), dtype=PROBLEM)[()]
    problem["sequences"], problem["heads"], problem["length"], _ = query.shape
    if cu_seqlens is not None:
        problem["sequences"] = cu_seqlens.shape[0] - 1
    problem["length_k"], problem["head_dim"] = key.shape[2], head_dim
    if attn_mask is not None:
        problem["mask_kind"] = BOOL_MASK if attn_mask.dtype == np.bool_ else FLOAT_MASK
    problem["scale"], problem["is_causal"] = scale, is_causal
    return problem


def set_strides(struct, **arrays):
    """Write the strides of each array, in elements, into the field of its name, as many as that holds; None: zeros."""
    for name, array in arrays.items():
        if array is not None:
            count = struct.dtype[name].shape[0]  # of the last axis of query, key and value it is 1
            struct[name] = [stride // array.dtype.itemsize for stride in array.strides[:count]]
