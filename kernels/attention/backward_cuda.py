"""CUDA kernels of attention's gradients and of its forward with dropout, which cuda.py launches; fp32 arithmetic.

Of relative terms they know the biases by distance. Where scores have gradients of their own, of a bias or of biases by
distance, these are written out as one array of the scores' size.
"""

import numpy as np

from .. import _cuda
from ..philox import threshold
from . import relative_cuda
from .problem import kernel_inputs, longest_sequences, tile_count

PADDED = (64, 128, 256)  # head_dim; BackwardTiling in backward.cuh
THREADS, DELTA_ROWS = 256, 4
MAX_HEAD_DIM = PADDED[-1]
TILED = ("attention_backward_keys", "attention_backward_queries", "attention_dropout")
INSTANTIATIONS = (
    *(f"attention_deltas<{c_name}>" for c_name in _cuda.C_TYPES.values()),
    *(f"{kernel}<{c_name}, {d}>" for kernel in TILED for c_name in _cuda.C_TYPES.values() for d in PADDED),
    "sum_distances",
    "sum_rows",
)
KERNELS = _cuda.Module(__file__, "backward.cu", INSTANTIATIONS)
DROPOUT = np.dtype([("seed", np.uint64), ("threshold", np.uint32), ("factor", np.float32)])
"""struct Dropout of backward.cuh."""


def dropped_output(output, lse, arrays, problem, scoring):
    """Write the output of attention whose probabilities dropout has thinned; lse is that of the forward."""
    kernel, rows, shared_bytes = _plan("attention_dropout", problem, output.dtype)
    grid = tile_count(problem, scoring.cu_seqlens is not None, rows), output.shape[1]
    args = (_memory(output, scoring), lse, *arrays, problem, _dropout(scoring))
    KERNELS.launch(kernel, grid, (THREADS,), args, shared_bytes)


def attention_backward(grad_output, query, key, value, output, lse, scoring):
    """(grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None)."""
    if relative_cuda.has_terms(scoring.relative):
        raise NotImplementedError("attention_backward with relative tables or segments is not on backend 'cupy' yet")
    check_head_dim(query)
    xp, is_packed = _cuda.array_module(query), scoring.cu_seqlens is not None
    arrays, problem = kernel_inputs(query, key, value, scoring)
    grad_output, output = (_contiguous(array, is_packed) for array in (grad_output, output))
    grad_query, grad_key, grad_value = (_zeros(array, is_packed) for array in (query, key, value))
    grad_scores, longest = _room_for_scores(query, key, scoring)
    if query.size and key.size:
        deltas = xp.empty(output.size // query.shape[3], np.float32)
        _launch_deltas(grad_output, output, deltas)
        shared = grad_output, xp.ascontiguousarray(lse), deltas, *arrays, problem, _dropout(scoring)
        _launch_tiled("keys", (grad_key, grad_value), shared, problem, is_packed, key)
        _launch_tiled("queries", (grad_query, grad_scores, *map(np.int32, longest)), shared, problem, is_packed, query)
    grads = (_four_axes(grad, is_packed) for grad in (grad_query, grad_key, grad_value))
    grad_bias = None if scoring.bias is None else _sum_broadcast(grad_scores, scoring.bias)
    return *grads, grad_bias, _relative_gradients(grad_scores, longest, scoring, problem)


def check_head_dim(query):
    if query.shape[3] > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {query.shape[3]}, the CUDA kernels take at most {MAX_HEAD_DIM}")


def _plan(kernel, problem, dtype):
    """(name expression, rows of a tile, bytes of shared memory)."""
    padded = next(size for size in PADDED if size >= int(problem["head_dim"]))
    tile = 2048 // padded
    return f"{kernel}<{_cuda.c_type(dtype)}, {padded}>", tile, 4 * (4 * tile * (padded + 1) + 2 * tile * (tile + 1))


def _launch_deltas(grad_output, output, deltas):
    blocks, sizes = -(-deltas.size // DELTA_ROWS), (np.int64(deltas.size), np.int32(output.size // deltas.size))
    kernel = f"attention_deltas<{_cuda.c_type(output.dtype)}>"
    KERNELS.launch(kernel, (blocks,), (32 * DELTA_ROWS,), (grad_output, output, deltas, *sizes))


def _launch_tiled(owner, outputs, shared, problem, is_packed, array):
    """`array`: the (batch, heads, length, head_dim) queries or keys whose tiles the blocks own."""
    kernel, rows, shared_bytes = _plan(f"attention_backward_{owner}", problem, array.dtype)
    sequences, length = int(problem["sequences"]), array.shape[2]
    tiles = length // rows + sequences if is_packed else sequences * -(-length // rows)
    KERNELS.launch(kernel, (tiles, array.shape[1]), (THREADS,), (*outputs, *shared), shared_bytes)


def _dropout(scoring):
    struct = np.zeros((), DROPOUT)[()]
    struct["factor"] = 1
    if scoring.dropout_p:
        struct["seed"], struct["threshold"] = scoring.dropout_seed, threshold(scoring.dropout_p)
        struct["factor"] = 1 / (1 - scoring.dropout_p)
    return struct


def _room_for_scores(query, key, scoring):
    """(zeros for the gradients of scores that have a use for them, or None; the longest sequences).

    Packed, their lengths are read, which waits for the GPU.
    """
    relative = scoring.relative
    if scoring.bias is None and (relative is None or relative.position_bias is None):
        return None, (0, 0)
    longest = longest_sequences(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k)
    sequences = len(query) if scoring.cu_seqlens is None else len(scoring.cu_seqlens) - 1
    return _cuda.array_module(query).zeros((sequences, query.shape[1], *longest), np.float32), longest


def _sum_broadcast(grad_scores, bias):
    """The gradient of the bias, of size 1 along the axes of stride 0."""
    axes = tuple(axis for axis, stride in enumerate(bias.strides) if stride == 0 and grad_scores.size)
    total = grad_scores.sum(axis=axes, keepdims=True) if axes else grad_scores
    return total.astype(bias.dtype, copy=False)


def _relative_gradients(grad_scores, longest, scoring, problem):
    relative = scoring.relative
    if relative is None:
        return None
    grad = None if relative.position_bias is None else _sum_by_distance(grad_scores, longest, scoring, problem)
    return type(relative)(None, position_bias=grad)


def _sum_by_distance(grad_scores, longest, scoring, problem):
    """The gradient of the (rows, heads) biases by distance."""
    table, distance_rows = scoring.relative.position_bias, scoring.relative.distance_rows
    xp, (rows, heads), span = _cuda.array_module(table), table.shape, sum(longest)
    grad = xp.zeros((rows, heads), np.float32)
    if grad_scores.size and grad.size:
        distances = xp.empty((heads, 2 * span + 1), np.float32)
        offsets = (
            None if it is None else xp.ascontiguousarray(it) for it in (scoring.cu_seqlens, scoring.cu_seqlens_k)
        )
        sizes = problem["sequences"], np.int32(heads), *map(np.int32, longest)
        KERNELS.launch("sum_distances", (2 * span + 1, heads), (256,), (grad_scores, distances, *offsets, *sizes))
        args = distances, xp.ascontiguousarray(distance_rows), problem["distances"], grad, np.int32(heads)
        KERNELS.launch("sum_rows", (rows,), (256,), (*args, np.int32(span)))
    return grad.astype(table.dtype, copy=False)


# ---- how arrays lie: (tokens, heads, head_dim) when packed, else (batch, heads, length, head_dim) --------------------


def _memory(array, scoring):
    """A (batch, heads, length, head_dim) array in the order of its memory."""
    return array if scoring.cu_seqlens is None else array[0].transpose(1, 0, 2)


def _contiguous(array, is_packed):
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array[0].transpose(1, 0, 2) if is_packed else array)


def _zeros(array, is_packed):
    shape = (array.shape[2], array.shape[1], array.shape[3]) if is_packed else array.shape
    return _cuda.array_module(array).zeros(shape, array.dtype)


def _four_axes(array, is_packed):
    return array.transpose(1, 0, 2)[None] if is_packed else array
