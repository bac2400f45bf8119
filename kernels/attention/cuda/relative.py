"""CUDA kernels of attention with tables of relative positions and segments: what cuda.py launches where they are there.

float16 and bfloat16 on tensor cores, float32 by FMA; reference.py defines it.
"""

import numpy as np

from ... import _cuda
from ..arguments import heads_first
from .problem import contiguous, set_strides

# {padded head_dim: (queries per block, keys at once)}: RelativeTiling in relative_tensor_cores.cuh. In float32 the
# smaller ones are for sm_75, where both tables, queries for them and a mask are 256 bytes more than its 64 KB.
MMA = {32: (64, 32), 64: (64, 32), 128: (32, 16)}
FP32 = {32: ((64, 32),), 64: ((32, 32), (32, 16)), 128: ((16, 16), (8, 16))}
FP32_THREADS = 128
WARP_ROWS, WARP_BYTES = 16, 2048  # queries of a warp and its room for products, in relative_tensor_cores.cuh
MAX_HEAD_DIM = 128
ADDED = ("NOTHING", "EVERYTHING")  # of problem.cuh

INSTANTIATIONS = [
    *(
        f"relative_attention_forward<{dtype}, {d}, {added}>"
        for dtype in ("__half", "__nv_bfloat16")
        for d in MMA
        for added in ADDED
    ),
    *(
        f"relative_attention_forward_fp32<{d}, {rows}, {keys}, {added}>"
        for d, sizes in FP32.items()
        for added in ADDED
        for rows, keys in (sizes[:1] if added == "NOTHING" else sizes)
    ),
    *(f"relative_attention_probs<{dtype}>" for dtype in _cuda.C_TYPES.values()),
]
KERNELS = _cuda.Module(__file__, "relative.cu", instantiations=INSTANTIATIONS)

STRIDED = ("query_for_position", "position_key", "position_query", "segment_scores")
SEGMENTS = ("segment_ids", "segment_ids_k")
RELATIVE = np.dtype([*((name, np.int64, 3) for name in STRIDED), *((name, np.int64) for name in SEGMENTS)])
"""struct Relative of relative_terms.cuh."""


def has_terms(relative):
    """Whether there is more than biases by distance, which all kernels know."""
    if relative is None:
        return False
    return any(it is not None for it in (relative.position_key, relative.position_query, relative.segment_scores))


def terms(relative):
    """What these kernels take behind the problem: four arrays of STRIDED, both arrays of segments, struct Relative."""
    tables = (heads_first(table) for table in (relative.position_key, relative.position_query))
    tiles = (None if it is None else _cuda.vector_rows(it) for it in (relative.query_for_position, *tables))
    arrays = dict(zip(STRIDED, (*tiles, relative.segment_scores), strict=True))
    struct = np.zeros((), dtype=RELATIVE)[()]
    set_strides(struct, **arrays)
    segments = contiguous(*(getattr(relative, name) for name in SEGMENTS))
    for name, ids in zip(SEGMENTS, segments, strict=True):
        struct[name] = 0 if ids is None else ids.shape[1]
    return *arrays.values(), *segments, struct


def forward_kernel(problem, dtype, is_packed, added, *tiles):
    """(kernel, queries per block, threads, bytes of shared memory); tiles: the arrays in shared memory, or None."""
    padded = next(size for size in MMA if size >= int(problem["head_dim"]))
    added, present = added if added in ADDED else "EVERYTHING", [array is not None for array in tiles]
    if dtype == np.float32:
        rows, keys, shared_bytes = fp32_tile(padded, added, _cuda.device().shared_bytes, *present)
        return f"attention_forward_fp32<{padded}, {rows}, {keys}, {added}>", rows, FP32_THREADS, shared_bytes
    (rows, _), shared_bytes = MMA[padded], shared_memory(padded, *present)
    return f"attention_forward<{_cuda.c_type(dtype)}, {padded}, {added}>", rows, rows // WARP_ROWS * 32, shared_bytes


def shared_memory(padded, *present):
    """The bytes of a block in half precision: the tiles of attention, those of RelativeTiles, and the products."""
    rows, keys = MMA[padded]
    count = rows + 2 * keys + _tile_rows(rows, keys, *present)
    return 2 * count * (padded + 8) + rows // WARP_ROWS * WARP_BYTES


def fp32_tile(padded, added, most, *present):
    """(queries per block, keys at once, bytes of a block) in float32: the first size of which `most` bytes hold a block
    with what its kernel declares (Stage in problem.cuh)."""
    for rows, keys in FP32[padded]:
        probs = max(keys * padded, rows * (keys + 16))  # the probabilities take the place of the keys
        shared_bytes = 4 * ((rows + keys + _tile_rows(rows, keys, *present)) * padded + probs)
        if shared_bytes + (0 if added == "NOTHING" else 4 * (rows + keys)) <= most:
            break
    return rows, keys, shared_bytes


def _tile_rows(rows, keys, has_query_for_position, has_position_key, has_position_query):
    """Those of RelativeTiles in relative_terms.cuh."""
    band = -(-(rows + keys - 1) // keys) * keys
    return has_query_for_position * rows + (has_position_key + has_position_query) * band
