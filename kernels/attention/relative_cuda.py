"""CUDA backend of relative attention, forward: the kernels of attention with terms added to their scores.

float16 and bfloat16 on tensor cores, float32 by FMA; reference.py defines it. As in attention nothing here reads an
array, but for the lengths of the sequences if return_probs asks for their probabilities.
"""

import numpy as np

from .. import _cuda
from .problem import PROBS_THREADS, compute_probs, problem_struct, set_strides

# {padded head_dim: (queries per block, keys at once)}: RelativeTiling in relative_tensor_cores.cuh, RelativeFp32Tiling
# in relative_fp32.cuh.
MMA = {32: (64, 32), 64: (64, 32), 128: (32, 16)}
FP32 = {32: (64, 32), 64: (32, 32), 128: (16, 16)}
FP32_THREADS = 128
WARP_ROWS, WARP_BYTES = 16, 2048  # queries of a warp and its room for products, in relative_tensor_cores.cuh
MAX_HEAD_DIM = 128

INSTANTIATIONS = [
    *(f"relative_attention_forward<{dtype}, {d}>" for dtype in ("__half", "__nv_bfloat16") for d in MMA),
    *(f"relative_attention_forward_fp32<{d}>" for d in FP32),
    *(f"relative_attention_probs<{dtype}>" for dtype in _cuda.C_TYPES.values()),
]
KERNELS = _cuda.Module(__file__, "relative.cu", instantiations=INSTANTIATIONS)

STRIDED = ("query_for_position", "position_key", "position_query", "segment_scores")
RELATIVE = np.dtype(
    [*((name, np.int64, 3) for name in STRIDED), *((name, np.int32) for name in ("rows", "distances"))], align=True
)
"""struct Relative of relative_terms.cuh."""


def attention(query, key, value, scoring, return_probs):
    """(output, lse, probabilities or None) of packed sequences."""
    relative = scoring.relative
    if (
        scoring.cu_seqlens is None
        or scoring.bias is not None
        or scoring.is_causal
        or relative.position_bias is not None
    ):
        raise NotImplementedError(
            "relative terms with dense arrays, bias, is_causal or position_bias have no implementation on backend "
            "'cupy' yet"
        )
    xp = _cuda.array_module(query)
    _, heads, tokens, head_dim = query.shape
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {head_dim}, the CUDA kernels take at most {MAX_HEAD_DIM} with tables")
    output = xp.empty((tokens, heads, head_dim), dtype=query.dtype).transpose(1, 0, 2)[None]
    lse = xp.empty((1, heads, tokens, 2), dtype=np.float32)
    tables = (_heads_first(table) for table in (relative.position_key, relative.position_query))
    tiles = (query, key, value, relative.query_for_position, *tables)
    query, key, value, *tiles = (None if array is None else _cuda.vector_rows(array) for array in tiles)
    positional = (*tiles, relative.segment_scores)
    indices = (
        relative.distance_rows, relative.segment_ids, relative.segment_ids_k, scoring.cu_seqlens, scoring.cu_seqlens_k,
    )  # fmt: skip
    indices = tuple(None if array is None else xp.ascontiguousarray(array) for array in indices)
    attn_mask = scoring.attn_mask
    problem = problem_struct(query, key, head_dim, scoring.cu_seqlens, attn_mask, False, scoring.scale)
    set_strides(problem, query=query, key=key, value=value, attn_mask=attn_mask)
    structs = problem, _relative_struct(positional, relative.distance_rows)
    shared_args = (*positional, *indices, attn_mask, *structs)
    if lse.size:
        kernel, blocks, threads, shared_bytes = _forward(problem, query.dtype, tiles)
        args = (output, lse, query, key, value, *shared_args)
        KERNELS.launch(kernel, (blocks, heads), (threads,), args, shared_bytes)
    probs = _probs(lse, query, key, indices, shared_args) if return_probs else None
    return output, lse, probs


def _forward(problem, dtype, tiles):
    """(kernel, tiles of queries, threads, bytes of shared memory)."""
    head_dim, tokens, sequences = (int(problem[name]) for name in ("head_dim", "length", "sequences"))
    sizes = FP32 if dtype == np.float32 else MMA
    padded = next(size for size in sizes if size >= head_dim)
    rows, _ = sizes[padded]
    blocks = tokens // rows + sequences
    shared_bytes = shared_memory(padded, dtype, *(array is not None for array in tiles))
    if dtype == np.float32:
        return f"relative_attention_forward_fp32<{padded}>", blocks, FP32_THREADS, shared_bytes
    kernel = f"relative_attention_forward<{_cuda.c_type(dtype)}, {padded}>"
    return kernel, blocks, rows // WARP_ROWS * 32, shared_bytes


def shared_memory(padded, dtype, has_query_for_position, has_position_key, has_position_query):
    """The bytes of a block: the tiles of attention, those of RelativeTiles in relative_terms.cuh, and the products."""
    rows, keys = (FP32 if dtype == np.float32 else MMA)[padded]
    count = has_query_for_position * rows + (has_position_key + has_position_query) * (rows + keys)
    if dtype == np.float32:
        probs = max(keys * padded, rows * (keys + 16))  # the probabilities take the place of the keys
        return 4 * ((rows + keys + count) * padded + probs)
    return 2 * (rows + 2 * keys + count) * (padded + 8) + rows // WARP_ROWS * WARP_BYTES


def _probs(lse, query, key, indices, shared_args):
    def launch(blocks, probs, longest):
        kernel = f"relative_attention_probs<{_cuda.c_type(query.dtype)}>"
        KERNELS.launch(kernel, (blocks,), (PROBS_THREADS,), (probs, lse, query, key, *shared_args, *longest))

    *_, cu_seqlens, cu_seqlens_k = indices
    return compute_probs(launch, query, key, cu_seqlens, cu_seqlens_k, cu_seqlens.shape[0] - 1)


def _heads_first(table):
    """(rows, heads, head_dim) as (1, heads, rows, head_dim)."""
    return None if table is None else table.transpose(1, 0, 2)[None]


def _relative_struct(positional, distance_rows):
    relative = np.zeros((), dtype=RELATIVE)[()]
    set_strides(relative, **dict(zip(STRIDED, positional, strict=True)))
    _, position_key, position_query, _ = positional
    relative["rows"] = (position_query if position_key is None else position_key).shape[2]
    relative["distances"] = distance_rows.shape[0]
    return relative
