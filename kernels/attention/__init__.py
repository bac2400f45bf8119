"""Scaled dot-product attention, dense or over packed sequences, forward and backward."""

from typing import Any, NamedTuple

import numpy as np

from .. import checks, dispatch
from ..precision import working_dtype
from .arguments import broadcast_mask, check_compute_dtype, check_packed, scale_or_default, scores_shape

OPTIONAL = ("cu_seqlens", "cu_seqlens_k", "attn_mask", "bias")


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    attn_mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    compute_dtype: str | None = None,
    return_lse: bool = False,
    return_probs: bool = False,
    backend: str | None = None,
) -> Any:
    """softmax(scale * query @ key.T + bias + mask) @ value for each sequence and head.

    A query that sees no key gives zeros. A key that is hidden must still be finite. Source: Vaswani et al. 2017,
    arXiv:1706.03762.

    Args:
        query, key, value: dense, (batch, heads, length, head_dim), or packed, (tokens, heads, head_dim). Key and value
            may have another length than the query; all three share one head_dim (at most 256 on CUDA). float32 or
            float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on NumPy.
        cu_seqlens: for packed arrays the offsets of the sequences, (sequences + 1,) integers from 0 to the number of
            tokens: sequence s is the tokens cu_seqlens[s] to cu_seqlens[s + 1]. On a GPU their values are not checked.
        cu_seqlens_k: the same for key and value; by default cu_seqlens.
        attn_mask: boolean, True where a query may see a key, or of the query's dtype and added to the scores (-inf
            hides). Broadcasts to (sequences, heads, longest query sequence, longest key sequence); what lies beyond
            the length of a sequence is not read.
        bias: added to the scores, of the query's dtype and broadcasting as attn_mask does; has a gradient.
        is_causal: query i sees the keys j <= i of its sequence only.
        scale: 1 / sqrt(head_dim) by default.
        compute_dtype: "bfloat16" rounds query, key, value and probabilities, which are float32, to bfloat16 before
            their products; sums and softmax are float32 still. Faster on a CPU that multiplies bfloat16, not on CUDA.
            By default all is computed in the arrays' dtype.
        return_lse: also return the log-sum-exp of the scores, which `attention_backward` needs.
        return_probs: also return the probabilities.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        output, or (output, lse), (output, probabilities) or (output, lse, probabilities) as asked for: the output of
        the query's shape and dtype; lse (batch, heads, length), packed (heads, tokens), in float32 (float64 for
        float64), -inf where a query sees no key; probabilities (sequences, heads, longest query sequence, longest key
        sequence) in the query's dtype, zeros beyond the length of a sequence.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape, offset, scale or compute_dtype.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, query=query, key=key, value=value,
        cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, attn_mask=attn_mask, bias=bias,
    )  # fmt: skip
    inputs = _normalise(call.backend, *call.arrays)
    check_compute_dtype(compute_dtype, call.backend, inputs.query)
    scale = scale_or_default(scale, inputs.query)
    output, lse, probs = call.compute("attention", *inputs, bool(is_causal), scale, bool(return_probs), compute_dtype)
    if inputs.cu_seqlens is not None:
        output, lse = _packed(output), lse[0]
    asked = (output, *([lse] if return_lse else []), *([probs] if return_probs else []))
    return call.hand_back(asked if len(asked) > 1 else output)


def attention_backward(
    grad_output: Any,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    *,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    attn_mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The gradients of `attention`; the probabilities are computed again from lse (Dao et al. 2022, arXiv:2205.14135).

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        output, lse: what `attention` returned with return_lse=True.
        query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale, backend: as for `attention`.

    Returns:
        (grad_query, grad_key, grad_value, grad_bias), each of the shape and dtype of its array; grad_bias is None if
        bias is. attn_mask has no gradient.

    Raises:
        As `attention`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, query=query, key=key, value=value,
        cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, attn_mask=attn_mask, bias=bias,
        grad_output=grad_output, output=output, lse=lse,
    )  # fmt: skip
    *inputs, grad_output, output, lse = call.arrays
    query, bias = inputs[0], inputs[-1]
    if bias is not None and 0 in bias.strides:
        inputs[-1] = bias.copy(order="C")  # to the backends a stride of 0 means an axis to sum the gradient over
    inputs = _normalise(call.backend, *inputs)
    checks.floating(call.backend, query=query, grad_output=grad_output, output=output)
    checks.shape(query.shape, grad_output=grad_output, output=output)
    packed = inputs.cu_seqlens is not None
    lse = _check_lse(lse, query, packed)
    grad_output, output = (_four_axes(array, packed) for array in (grad_output, output))
    *grads, grad_bias = call.compute(
        "attention_backward", grad_output, *inputs[:3], output, lse, *inputs[3:], bool(is_causal),
        scale_or_default(scale, inputs.query),
    )  # fmt: skip
    if packed:
        grads = [_packed(grad) for grad in grads]
    if bias is not None:
        grad_bias = _sum_to_shape(grad_bias, bias.shape)
    return call.hand_back((*grads, grad_bias))


class _Inputs(NamedTuple):
    """Checked arguments in the form and order that the backends take them."""

    query: Any
    key: Any
    value: Any
    cu_seqlens: Any
    cu_seqlens_k: Any
    attn_mask: Any
    bias: Any


def _normalise(
    backend: str, query: Any, key: Any, value: Any, cu_seqlens: Any, cu_seqlens_k: Any, attn_mask: Any, bias: Any
) -> _Inputs:
    checks.floating(backend, query=query, key=key, value=value, bias=bias)
    if attn_mask is not None and attn_mask.dtype not in (np.bool_, query.dtype):
        raise TypeError(f"attn_mask has dtype {attn_mask.dtype}, expected bool or {query.dtype} as query has")
    packed = cu_seqlens is not None
    if packed:
        cu_seqlens, cu_seqlens_k = check_packed(query, key, value, cu_seqlens, cu_seqlens_k)
    else:
        _check_dense(query, key, value, cu_seqlens_k)
    if attn_mask is not None or bias is not None:
        shape = scores_shape(query, key, cu_seqlens, cu_seqlens_k, attn_mask, bias)
        attn_mask, bias = broadcast_mask("attn_mask", attn_mask, shape), broadcast_mask("bias", bias, shape)
    query, key, value = _four_axes(query, packed), _four_axes(key, packed), _four_axes(value, packed)
    return _Inputs(query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias)


def _check_dense(query: Any, key: Any, value: Any, cu_seqlens_k: Any) -> None:
    if cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k is given without cu_seqlens: packed arrays need both, dense ones neither")
    if query.ndim == 3:
        raise ValueError(
            f"query has shape {query.shape}, expected (batch, heads, length, head_dim); "
            "packed (tokens, heads, head_dim) arrays need cu_seqlens"
        )
    checks.shape((None,) * 4, query=query)
    checks.shape((*query.shape[:2], None, query.shape[3]), key=key)
    checks.shape(key.shape, value=value)


def _four_axes(array: Any, packed: bool) -> Any:
    """(batch, heads, length, head_dim), the last axis contiguous; a view where possible."""
    array = array.transpose(1, 0, 2)[None] if packed else array
    return array if array.strides[-1] == array.itemsize else array.copy(order="C")


def _packed(array: Any) -> Any:
    """(1, heads, tokens, head_dim) as (tokens, heads, head_dim)."""
    return array[0].transpose(1, 0, 2)


def _check_lse(lse: Any, query: Any, packed: bool) -> Any:
    """lse as (batch, heads, length)."""
    expected = working_dtype(query.dtype)
    if lse.dtype != expected:
        raise TypeError(f"lse has dtype {lse.dtype}, expected {expected} for a query of {query.dtype}")
    checks.shape((query.shape[1], query.shape[0]) if packed else query.shape[:3], lse=lse)
    return lse[None] if packed else lse


def _sum_to_shape(grad: Any, shape: tuple[int, ...]) -> Any:
    """grad, (sequences, heads, longest query, longest key), summed over the axes along which `shape` was broadcast.

    A backend may have done so already: then grad has size 1 there.
    """
    padded = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(axis for axis in range(4) if padded[axis] == 1 and grad.shape[axis] != 1)
    return (grad.sum(axis=axes, keepdims=True) if axes else grad).reshape(shape)
