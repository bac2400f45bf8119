"""CUDA backend of attention: float16 and bfloat16 on tensor cores, float32 by FMA; reference.py defines it.

Every kernel takes windows, causality, heads that share keys and values, biases by distance, bias and mask. Tables of
relative positions and segments have kernels of their own (relative.py), and so have dropout and the gradients
(backward.py).

The launches depend on shapes and strides alone, so that no call waits for the GPU, with one exception: return_probs of
packed sequences reads the offsets, since the shape of its result depends on them.
"""

import numpy as np

from ... import _cuda
from . import backward as backward_cuda
from . import relative as relative_cuda
from .backward import attention_backward
from .problem import PROBS_THREADS, added_kind, compute_probs, kernel_inputs, tile_count

__all__ = ["attention", "attention_backward"]

# Instantiations of the kernels and their bytes of shared memory (Tiling in tensor_cores.cuh, Fp32Tiling in fp32.cuh):
# {(padded head_dim, strips): bytes} on tensor cores, {padded head_dim: (queries per block, bytes)} in float32.
MMA = {
    (32, 1): 15360,
    (32, 2): 20480,
    (64, 1): 27648,
    (64, 2): 36864,
    (128, 1): 34816,
    (128, 2): 52224,
    (256, 1): 50688,
}
FP32 = {32: (64, 36864), 64: (64, 53248), 128: (64, 65536), 256: (32, 65536)}
MAX_HEAD_DIM = 256
STRIP_ROWS = 64  # queries per block and strip
STATIC_BYTES = 2048  # at most: what a block's kernel declares, and 1 KB of the GPU's own

THREADS = 128

ADDED = ("NOTHING", "BY_KEY", "BY_DISTANCE", "EVERYTHING")  # of problem.cuh
INSTANTIATIONS = [
    *(
        _cuda.template("attention_forward", dtype, *tiling, added)
        for dtype in ("__half", "__nv_bfloat16")
        for tiling in MMA
        for added in ADDED
    ),
    *_cuda.instantiations("attention_forward_fp32", ADDED, types=FP32),
    *_cuda.instantiations("attention_probs"),
]
KERNELS = _cuda.Source(__file__, "attention.cu", instantiations=INSTANTIATIONS)


def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """Return (output, lse, probabilities or None, None); return_components must be False and compute_dtype None."""
    has_terms = relative_cuda.has_terms(scoring.relative)
    most, prefix, kernels = MAX_HEAD_DIM, "", KERNELS
    if has_terms:
        most, prefix, kernels = relative_cuda.MAX_HEAD_DIM, "relative_", relative_cuda.KERNELS
    batch, heads, length, head_dim = query.shape
    if head_dim > most:
        beside = " with relative tables or segments" * has_terms
        raise ValueError(f"query has head_dim {head_dim}, expected at most {most}{beside} on CUDA")
    xp, is_packed = _cuda.array_module(query), scoring.cu_seqlens is not None
    if is_packed:
        output = xp.empty((length, heads, head_dim), dtype=query.dtype).transpose(1, 0, 2)[None]
    else:
        output = xp.empty(query.shape, dtype=query.dtype)
    lse = xp.empty((batch, heads, length, 2), dtype=np.float32)
    arrays, problem = kernel_inputs(query, key, value, scoring)
    terms = relative_cuda.terms(scoring.relative) if has_terms else ()
    if lse.size:
        choose = relative_cuda.forward_kernel if has_terms else _forward_kernel
        kernel, rows, threads, shared_bytes = choose(problem, query.dtype, is_packed, added_kind(scoring), *terms[:3])
        grid = tile_count(problem, is_packed, rows), heads
        kernels.launch(prefix + kernel, grid, (threads,), (output, lse, *arrays, problem, *terms), shared_bytes)
        if scoring.dropout_p:
            backward_cuda.dropped_output(output, lse, query, key, arrays, problem, scoring)
    if not return_probs:
        return output, lse, None, None

    def launch(blocks, probs, longest):
        kernel = _cuda.template(f"{prefix}attention_probs", _cuda.c_type(query.dtype))
        kernels.launch(kernel, (blocks,), (PROBS_THREADS,), (probs, lse, *arrays, problem, *terms, *longest))

    return output, lse, compute_probs(launch, query, key, *scoring[:2], int(problem["sequences"])), None


def fits_twice(padded, shared_bytes):
    """Return whether a multiprocessor with so many bytes of shared memory holds two blocks with two strips a warp."""
    return 2 * (MMA.get((padded, 2), shared_bytes) + STATIC_BYTES) <= shared_bytes


def _forward_kernel(problem, dtype, is_packed, added):
    """Return (kernel, queries per block, threads, bytes of shared memory)."""
    head_dim, length, sequences = (int(problem[name]) for name in ("head_dim", "length", "sequences"))
    if dtype == np.float32:
        padded = next(size for size in FP32 if size >= head_dim)
        rows, shared_bytes = FP32[padded]
        return _cuda.template("attention_forward_fp32", padded, added), rows, THREADS, shared_bytes
    padded = next(size for size, _ in MMA if size >= head_dim)
    # Two strips per warp halve the reads of keys and values; one suffices for short sequences, and occupies the GPU
    # better where there are few tiles, or where a multiprocessor has no memory for two such blocks.
    mean_length, device = length / sequences if is_packed else length, _cuda.device()
    blocks = tile_count(problem, is_packed, 2 * STRIP_ROWS) * int(problem["heads"])
    is_large = mean_length > STRIP_ROWS and blocks >= 2 * device.multiprocessors
    strips = 2 if is_large and fits_twice(padded, device.shared_bytes) else 1
    kernel = _cuda.template("attention_forward", _cuda.c_type(dtype), padded, strips, added)
    return kernel, strips * STRIP_ROWS, THREADS, MMA[padded, strips]
