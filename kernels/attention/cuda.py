"""CUDA backend of attention, forward: float16 and bfloat16 on tensor cores, float32 by FMA; reference.py defines it.

Nothing here reads an array: the launches depend on shapes and strides alone, so that no call waits for the GPU. The one
exception is return_probs of packed sequences, whose result's very shape is on the device.
"""

import numpy as np

from .. import _cuda
from . import relative_cuda
from .arguments import UNLIMITED
from .problem import PROBS_THREADS, compute_probs, problem_struct, set_strides

# What the kernels are instantiated for, and the bytes of shared memory each takes (Tiling in tensor_cores.cuh,
# Fp32Tiling in fp32.cuh): {(padded head_dim, strips): bytes} on tensor cores, {padded head_dim: (queries per block,
# bytes)} in float32.
MMA = {(32, 1): 15360, (32, 2): 20480, (64, 1): 27648, (64, 2): 36864, (128, 2): 52224, (256, 1): 50688}
FP32 = {32: (64, 36864), 64: (64, 53248), 128: (64, 65536), 256: (32, 65536)}
MAX_HEAD_DIM = 256
STRIP_ROWS = 64  # queries per block and strip

THREADS = 128

INSTANTIATIONS = [
    *(f"attention_forward<{dtype}, {d}, {strips}>" for dtype in ("__half", "__nv_bfloat16") for d, strips in MMA),
    *(f"attention_forward_fp32<{head_dim}>" for head_dim in FP32),
    *(f"attention_probs<{dtype}>" for dtype in _cuda.C_TYPES.values()),
]
KERNELS = _cuda.Module(__file__, "attention.cu", instantiations=INSTANTIATIONS)


def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """(output, lse, probabilities or None, None); return_components must be False and compute_dtype None."""
    if scoring.window != (UNLIMITED, UNLIMITED) or key.shape[1] != query.shape[1]:
        raise NotImplementedError("windows and grouped heads have no implementation on backend 'cupy' yet")
    if scoring.relative is not None:
        return *relative_cuda.attention(query, key, value, scoring, return_probs), None
    xp = _cuda.array_module(query)
    cu_seqlens, cu_seqlens_k, attn_mask, bias = scoring[:4]
    batch, heads, length, head_dim = query.shape
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {head_dim}, the CUDA kernels take at most {MAX_HEAD_DIM}")
    if cu_seqlens is None:
        output = xp.empty(query.shape, dtype=query.dtype)
    else:
        output = xp.empty((length, heads, head_dim), dtype=query.dtype).transpose(1, 0, 2)[None]
        cu_seqlens, cu_seqlens_k = map(xp.ascontiguousarray, (cu_seqlens, cu_seqlens_k))
    lse = xp.empty((batch, heads, length, 2), dtype=np.float32)
    query, key, value = map(_cuda.vector_rows, (query, key, value))
    problem = problem_struct(query, key, head_dim, cu_seqlens, attn_mask, scoring.is_causal, scoring.scale)
    set_strides(problem, query=query, key=key, value=value, attn_mask=attn_mask, bias=bias)
    offsets_and_masks = (cu_seqlens, cu_seqlens_k, attn_mask, bias)
    if lse.size:
        kernel, tiles, shared_bytes = _forward(problem, query.dtype, cu_seqlens is not None)
        args = (output, lse, query, key, value, *offsets_and_masks, problem)
        KERNELS.launch(kernel, (tiles, heads), (THREADS,), args, shared_bytes)
    probs = _probs(lse, query, key, offsets_and_masks, problem) if return_probs else None
    return output, lse, probs, None


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
