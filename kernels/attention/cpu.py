"""Attention on the CPU: what the arrays are to the kernels (forward.py, backward.py)."""

import numpy as np

from .._numba import as_kernel_array, num_threads
from .._numba.rows import task_count
from .._numba.steps import ATTENTION, bits_of
from ..program import Deferred
from .backward import backward
from .forward import forward
from .reference import empty_like, scores_shape

GRAIN = 300_000  # multiply-adds: see task_count
STORAGE = {"bfloat16": np.uint16(0), np.dtype(np.float32): np.float32(0), np.dtype(np.float64): np.float64(0)}
ATTENTION_STORAGE = {np.float32: np.float32, np.uint16: np.uint16, np.int8: np.uint16}  # beside weights of these words
_NO_OFFSETS = np.empty(0, np.int32)


def attention(
    query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale, return_probs, compute_dtype
):
    """(output, lse, probabilities or None)."""
    query, key, value = with_unit_columns(query), with_unit_columns(key), with_unit_columns(value)
    batch, heads, length, head_dim = query.shape
    length_k, dtype = key.shape[2], query.dtype
    output = empty_like(query, cu_seqlens)
    lse = np.empty((batch, heads, length), dtype)
    probs = None
    if return_probs:
        probs = np.zeros(scores_shape(query, key, cu_seqlens, cu_seqlens_k), dtype)
    attn_mask, bias = added_mask(attn_mask, dtype), added_mask(bias, dtype)
    sequences, keys = batch, length_k
    if cu_seqlens is None:
        cu_seqlens = cu_seqlens_k = _NO_OFFSETS
    else:
        cu_seqlens, cu_seqlens_k = as_kernel_array(cu_seqlens), as_kernel_array(cu_seqlens_k)
        sequences = len(cu_seqlens) - 1
        keys = length_k // max(sequences, 1)
    if batch * heads * length:
        forward(
            *view(query), *view(key), *view(value), *view(output),
            *optional_view(probs, dtype), *optional_view(attn_mask, dtype), *optional_view(bias, dtype),
            lse, cu_seqlens, cu_seqlens_k, (sequences, heads, length, length_k, head_dim), is_causal, dtype.type(scale),
            STORAGE[compute_dtype or dtype], np.zeros(1, np.int64),
            task_count(2 * batch * heads * length * keys * head_dim, GRAIN),
        )  # fmt: skip
    return output, lse, probs


def deferred_attention(
    program, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale, return_probs, compute_dtype
):
    """Note the step of packed attention in float32, or in bfloat16 beside weights of low precision; None for others."""
    arrays = query, key, value
    storage = STORAGE[compute_dtype or query.dtype]
    if cu_seqlens is None or return_probs or attn_mask is not None or bias is not None or not query.size:
        return None
    if ATTENTION_STORAGE.get(type(program.storage)) is not type(storage) or not all(map(is_deferred_float32, arrays)):
        return None
    _, heads, tokens, head_dim = query.shape
    output = program.empty((tokens, heads, head_dim), np.float32).transpose(1, 0, 2)[None]
    lse = program.empty((1, heads, tokens), np.float32)
    sequences, keys = len(cu_seqlens) - 1, key.shape[2]
    tasks = task_count(2 * heads * tokens * (keys // sequences) * head_dim, GRAIN)
    program.note(
        ATTENTION, tasks, *step_fields(program, *arrays, output, lse, cu_seqlens, cu_seqlens_k, is_causal, scale)
    )
    return output, lse, None


def step_fields(program, query, key, value, output, lse, cu_seqlens, cu_seqlens_k, is_causal, scale):
    """What a step of attention holds after its operation and its tasks (see forward.py)."""
    arrays = query, key, value, output
    _, heads, tokens, head_dim = query.shape
    return (
        *map(program.address, (*arrays, lse)),
        *(stride for array in arrays for stride in array.strides[1:3]),
        program.address(as_kernel_array(cu_seqlens)), program.address(as_kernel_array(cu_seqlens_k)),
        len(cu_seqlens) - 1, heads, tokens, key.shape[2], head_dim, is_causal, bits_of(scale),
    )  # fmt: skip


def is_deferred_float32(array):
    """Whether an array is a Deferred whose rows are contiguous float32."""
    return type(array) is Deferred and array.dtype == np.float32 and array.strides[-1] == array.itemsize


def attention_backward(
    grad_output, query, key, value, output, lse, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale
):
    """(grad_query, grad_key, grad_value, grad_bias or None); grad_bias has size 1 where bias is broadcast.

    Rows of probabilities are whole here, so `output` is not needed (see reference.py for why that is better).
    """
    grad_output, query, key, value = (with_unit_columns(array) for array in (grad_output, query, key, value))
    sequences = sequence_table(query, key, cu_seqlens, cu_seqlens_k)
    gradients = tuple(empty_like(array, cu_seqlens) for array in (query, key, value))
    grad_bias = None if bias is None else np.zeros((*_own(bias).shape[:3], bias.shape[3]), query.dtype)
    added = [added_mask(array, query.dtype) for array in (attn_mask, bias)]
    views = [view_address(array) for array in (query, key, value, grad_output, *gradients, *added, grad_bias)]
    groups = (len(sequences), query.shape[1]) if bias is None else grad_bias.shape[:2]
    counter = np.zeros(1, np.int64)
    if query.size or key.size:
        lse, scale = as_kernel_array(lse), query.dtype.type(scale)
        backward(*views, lse, sequences, groups, query.shape[3], is_causal, scale, counter, num_threads())
    if bias is not None and _own(bias).shape[3] < bias.shape[3]:
        grad_bias = grad_bias.sum(axis=3, keepdims=True)
    return *gradients, grad_bias


def with_unit_columns(array):
    size = array.itemsize
    batch, head, row, unit = array.strides
    whole = unit == size and not (batch % size or head % size or row % size)
    return array if whole and array.flags.aligned else array.copy(order="C")


def view(array):
    """The first row of an array and its strides, 0 for the batch if that has size 1.

    A row is contiguous, whatever the array is, and so needs no specialisation of its own; its address costs 0.1 us this
    way, as array.ctypes.data 1 us.
    """
    row = array[0, 0, 0] if array.size else np.empty(0, array.dtype)
    strides = array.strides
    return as_kernel_array(row), (0, *strides[1:]) if array.shape[0] == 1 and strides[0] else strides


def optional_view(array, dtype):
    """`view` of an array that may be absent, with strides of 0 along axes of size 1."""
    if array is None:
        return np.empty(0, dtype), (0, 0, 0, 0)
    row, strides = view(array)
    return row, tuple(0 if size == 1 else stride for size, stride in zip(array.shape, strides, strict=True))


def view_address(array):
    """(address, stride of axis 0, of axis 1, of axis 2), strides in elements, 0 where the axis has size 1."""
    if array is None:
        return 0, 0, 0, 0
    strides = zip(array.shape[:3], array.strides, strict=False)
    return array.ctypes.data, *(0 if size == 1 else stride // array.itemsize for size, stride in strides)


def _own(array):
    """`array` with size 1 along the axes of stride 0."""
    return array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]


def added_mask(mask, dtype):
    """A boolean or additive mask as what is added to the scores: contiguous along the keys, small where broadcast."""
    if mask is None:
        return None
    own = _own(mask)
    if own.dtype == np.bool_:
        own = np.where(own, dtype.type(0), dtype.type(-np.inf))
    return np.ascontiguousarray(np.broadcast_to(own, (*own.shape[:3], mask.shape[3])))


def sequence_table(query, key, cu_seqlens, cu_seqlens_k):
    """Per sequence: first query, queries, first key, keys."""
    batch, _, length, _ = query.shape
    if cu_seqlens is None:
        return np.tile(np.array([0, length, 0, key.shape[2]], np.int64), (batch, 1))
    table = np.zeros((len(cu_seqlens) - 1, 4), np.int64)
    table[:, 0], table[:, 1] = cu_seqlens[:-1], np.diff(cu_seqlens)
    table[:, 2], table[:, 3] = cu_seqlens_k[:-1], np.diff(cu_seqlens_k)
    return table
