"""Attention on the CPU: what the arrays are to the kernels (forward.py, backward.py)."""

import numpy as np

from .._numba import as_kernel_array, num_threads
from .._numba.rows import task_count
from ..deferred import computed
from . import reference, relative_cpu
from .arguments import UNLIMITED
from .backward import backward
from .forward import forward
from .positions import RelativePositions
from .reference import empty_like, score_components, scores_shape, unbroadcast
from .views import (
    GRAIN,
    STORAGE,
    added_mask,
    optional_view,
    sequence_table,
    view,
    view_address,
    with_unit_columns,
)

_NO_OFFSETS = np.empty(0, np.int32)


def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """(output, lse, probabilities or None, components or None); components are computed as the definition does."""
    relative = _computed(scoring.relative)
    scoring = scoring._replace(relative=relative)
    if only_by_definition(query, key, scoring):
        return reference.attention(query, key, value, scoring, return_probs, return_components, compute_dtype)
    components = score_components(query, key, scoring, compute_dtype) if return_components else None
    forward = _attention if relative is None else relative_cpu.attention
    return *forward(query, key, value, scoring, return_probs, compute_dtype), components


def _computed(relative):
    """The terms with what a program defers as arrays."""
    if relative is None:
        return None
    return RelativePositions(**{name: computed(value) for name, value in vars(relative).items()})


def only_by_definition(query, key, scoring):
    """What the kernels do not compute yet."""
    relative = scoring.relative
    if scoring.window != (UNLIMITED, UNLIMITED) or query.shape[1] != key.shape[1]:
        return True
    if relative is None:
        return False
    has_more = relative.position_bias is not None or scoring.bias is not None or scoring.is_causal
    return scoring.cu_seqlens is None or has_more


def _attention(query, key, value, scoring, return_probs, compute_dtype):
    query, key, value = with_unit_columns(query), with_unit_columns(key), with_unit_columns(value)
    batch, heads, length, head_dim = query.shape
    length_k, dtype = key.shape[2], query.dtype
    cu_seqlens, cu_seqlens_k = scoring.cu_seqlens, scoring.cu_seqlens_k
    output = empty_like(query, cu_seqlens)
    lse = np.empty((batch, heads, length, 2), dtype)
    probs = None
    if return_probs:
        probs = np.zeros(scores_shape(query, key, cu_seqlens, cu_seqlens_k), dtype)
    attn_mask, bias = added_mask(scoring.attn_mask, dtype), added_mask(scoring.bias, dtype)
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
            lse, cu_seqlens, cu_seqlens_k, (sequences, heads, length, length_k, head_dim), scoring.is_causal,
            dtype.type(scoring.scale), STORAGE[compute_dtype or dtype], np.zeros(1, np.int64),
            task_count(2 * batch * heads * length * keys * head_dim, GRAIN),
        )  # fmt: skip
    return output, lse, probs


def attention_backward(grad_output, query, key, value, output, lse, scoring):
    """(grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None).

    Rows of probabilities are whole here, so `output` is not needed (see reference.py for why that is better).
    """
    scoring = scoring._replace(relative=_computed(scoring.relative))
    if only_by_definition(query, key, scoring):
        return reference.attention_backward(grad_output, query, key, value, output, lse, scoring)
    if scoring.relative is not None:
        return relative_cpu.attention_backward(grad_output, query, key, value, lse, scoring)
    grad_output, query, key, value = (with_unit_columns(array) for array in (grad_output, query, key, value))
    bias, cu_seqlens = scoring.bias, scoring.cu_seqlens
    sequences = sequence_table(query, key, cu_seqlens, scoring.cu_seqlens_k)
    gradients = tuple(empty_like(array, cu_seqlens) for array in (query, key, value))
    grad_bias = None if bias is None else np.zeros((*unbroadcast(bias).shape[:3], bias.shape[3]), query.dtype)
    added = [added_mask(array, query.dtype) for array in (scoring.attn_mask, bias)]
    views = [view_address(array) for array in (query, key, value, grad_output, *gradients, *added, grad_bias)]
    groups = (len(sequences), query.shape[1]) if bias is None else grad_bias.shape[:2]
    counter = np.zeros(1, np.int64)
    if query.size or key.size:
        lse, scale = as_kernel_array(lse), query.dtype.type(scoring.scale)
        backward(*views, lse, sequences, groups, query.shape[3], scoring.is_causal, scale, counter, num_threads())
    if bias is not None and unbroadcast(bias).shape[3] < bias.shape[3]:
        grad_bias = grad_bias.sum(axis=3, keepdims=True)
    return *gradients, grad_bias, None
