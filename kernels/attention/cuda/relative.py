"""CUDA attention with tables of relative positions and segments: 16 bits on tensor cores, float32 by FMA."""

import numpy as np

from ... import _cuda
from ..arguments import heads_first
from .problem import set_strides

# {padded head_dim: (queries per block, keys at once)}: RelativeTiling in relative_tensor_cores.cuh. In float32 the
# smaller ones are for sm_75, where both tables, queries for them and a mask need 256 bytes more than its 64 KB.
MMA = {32: (64, 32), 64: (64, 32), 128: (32, 16)}
FP32 = {32: ((64, 32),), 64: ((32, 32), (32, 16)), 128: ((16, 16), (8, 16))}
FP32_THREADS = 128
WARP_ROWS, WARP_BYTES = 16, 2048  # queries of a warp, and its bytes for products, in relative_tensor_cores.cuh
MAX_HEAD_DIM = 128
ADDED = ("NOTHING", "EVERYTHING")  # of problem.cuh

INSTANTIATIONS = [
    *_cuda.instantiations("relative_attention_forward", MMA, ADDED, types=("__half", "__nv_bfloat16")),
    *(
        _cuda.template("relative_attention_forward_fp32", size, *tile, added)
        for size, tiles in FP32.items()
        for added in ADDED
        for tile in (tiles[:1] if added == "NOTHING" else tiles)
    ),
    *_cuda.instantiations("relative_attention_probs"),
]
KERNELS = _cuda.Module(__file__, "relative.cu", instantiations=INSTANTIATIONS)

STRIDED = ("query_for_position", "position_key", "position_query", "segment_scores")
SEGMENTS = ("segment_ids", "segment_ids_k")
RELATIVE = np.dtype([*((name, np.int64, 3) for name in STRIDED), *((name, np.int64) for name in SEGMENTS)])
"""struct Relative of relative_terms.cuh."""


def has_terms(relative):
    """Return whether there are more terms than biases by distance, which all kernels take."""
    if relative is None:
        return False
    return any(it is not None for it in (relative.position_key, relative.position_query, relative.segment_scores))


def terms(relative):
    """Return these kernels' arguments after the problem: the arrays of STRIDED, those of SEGMENTS, struct Relative."""
    tables = (heads_first(table) for table in (relative.position_key, relative.position_query))
    tiles = (None if it is None else _cuda.vector_rows(it) for it in (relative.query_for_position, *tables))
    arrays = dict(zip(STRIDED, (*tiles, relative.segment_scores), strict=True))
    struct = np.zeros((), dtype=RELATIVE)[()]
    set_strides(struct, **arrays)
    segments = _cuda.contiguous(*(getattr(relative, name) for name in SEGMENTS))
    for name, ids in zip(SEGMENTS, segments, strict=True):
        struct[name] = 0 if ids is None else ids.shape[1]
    return *arrays.values(), *segments, struct


def forward_kernel(problem, dtype, is_packed, added, *tiles):
    """Return (kernel, queries per block, threads, shared bytes); tiles: the arrays in shared memory, or None."""
    padded = next(size for size in MMA if size >= int(problem["head_dim"]))
    added, present = added if added in ADDED else "EVERYTHING", [array is not None for array in tiles]
    if dtype == np.float32:
        rows, keys, shared_bytes = fp32_tile(padded, added, _cuda.device().shared_bytes, *present)
        return _cuda.template("attention_forward_fp32", padded, rows, keys, added), rows, FP32_THREADS, shared_bytes
    (rows, _), shared_bytes = MMA[padded], shared_memory(padded, *present)
    kernel = _cuda.template("attention_forward", _cuda.c_type(dtype), padded, added)
    return kernel, rows, rows // WARP_ROWS * 32, shared_bytes


def shared_memory(padded, *present):
    """Return a block's bytes in half precision: the tiles of attention and of RelativeTiles, and the products."""
    rows, keys = MMA[padded]
    count = rows + 2 * keys + _tile_rows(rows, keys, *present)
    return 2 * count * (padded + 8) + rows // WARP_ROWS * WARP_BYTES


def fp32_tile(padded, added, most, *present):
    """Return (queries per block, keys at once, bytes of a block) in float32.

    It is the first size whose block, with the shared memory that its kernel declares (Stage in problem.cuh), fits into
    `most` bytes.
    """
    for rows, keys in FP32[padded]:
        probs = max(keys * padded, rows * (keys + 16))  # the probabilities take the place of the keys
        shared_bytes = 4 * ((rows + keys + _tile_rows(rows, keys, *present)) * padded + probs)
        if shared_bytes + (0 if added == "NOTHING" else 4 * (rows + keys)) <= most:
            break
    return rows, keys, shared_bytes


def _tile_rows(rows, keys, has_query_for_position, has_position_key, has_position_query):
    """Return the rows of RelativeTiles in relative_terms.cuh."""
    band = -(-(rows + keys - 1) // keys) * keys
    return has_query_for_position * rows + (has_position_key + has_position_query) * band
