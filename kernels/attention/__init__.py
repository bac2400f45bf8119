"""Scaled dot-product attention, dense or over packed sequences, with relative positions; forward and backward.

What the backends implement, with `scoring` as arguments.py describes it:

    attention(query, key, value, scoring, return_probs, return_components, compute_dtype)
        -> (output, lse, probabilities or None, components or None)

    attention_backward(grad_output, query, key, value, output, lse, scoring, out)
        -> (grad_query, grad_key, grad_value, grad_bias or None, RelativePositions of gradients or None)

All arrays of tokens are (batch, heads, length, head_dim) with contiguous rows; packed ones are views of that form whose
batch is 1. grad_bias may have size 1 along axes on which bias has a stride of 0. `out` is None or where the first three
gradients go.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import checks, dispatch
from ..precision import working_dtype
from .arguments import (
    Scoring,
    broadcast_mask,
    check_compute_dtype,
    check_dense,
    check_longest,
    check_packed,
    check_relative,
    check_window,
    scale_or_default,
    scores_shape,
)
from .positions import OF_RELATIVE, RelativePositions, alibi_positions, bucketed_distances

__all__ = [
    "Gradients", "RelativePositions", "alibi_positions", "attention", "attention_backward", "bucketed_distances",
]  # fmt: skip

_ARRAYS = ("query", "key", "value", "cu_seqlens", "cu_seqlens_k", "attn_mask", "bias", "dropout_seed")
_OPTIONAL = (*_ARRAYS[3:], *OF_RELATIVE[1:])
_TARGETS = ("out[0]", "out[1]", "out[2]")


class Gradients(NamedTuple):
    """The gradients of `attention`, each of its array's shape and dtype; None where the array is None."""

    query: Any
    key: Any
    value: Any
    bias: Any
    relative: RelativePositions | None


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
    window: int | tuple[int | None, int | None] | None = None,
    relative: RelativePositions | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = 0,
    compute_dtype: str | None = None,
    return_lse: bool = False,
    return_probs: bool = False,
    return_components: bool = False,
    backend: str | None = None,
) -> Any:
    """softmax(scale * query @ key.T + relative terms + bias + mask) @ value for each sequence and head.

    A query that sees no key gives zeros. A hidden key must be finite. Source: Vaswani et al. 2017, arXiv:1706.03762.

    Args:
        query: dense, (batch, heads, length, head_dim), or packed, (tokens, heads, head_dim). float32 or float64 on
            Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on NumPy. On CUDA head_dim is at most 256,
            with relative tables or segments 128.
        key, value: as the query, possibly of another length. Their number of heads may divide the query's (grouped
            queries, Ainslie et al. 2023, arXiv:2305.13245): query head h has their head h * key heads // heads.
        cu_seqlens: for packed arrays the offsets of the sequences, (sequences + 1,) integers from 0 to the number of
            tokens: sequence s begins at cu_seqlens[s]. On a GPU their values are not checked, and of tokens that are
            in no sequence nothing is written.
        cu_seqlens_k: the same for key and value; by default cu_seqlens.
        attn_mask: boolean, True where a query may see a key, or of the query's dtype and added to the scores. It
            broadcasts to (sequences, heads, longest query, longest key); what lies beyond a sequence is not read.
            With cu_seqlens on a GPU nobody sees that it is shorter than the longest sequence: memory behind it is read.
        bias: added to the scores, of the query's dtype and broadcasting as attn_mask does; has a gradient.
        is_causal: query i sees the keys j <= i of its sequence, as in PyTorch. After a memory window=(None, 0) does it.
        window: (left, right), or one integer for both: query i, which stands at the key position p = i + keys -
            queries, sees the keys from p - left to p + right only; None is no limit. As in flash-attention; costs
            O(length * window). Beltagy et al. 2020, arXiv:2004.05150.
        relative: terms of relative position and of segments.
        scale: 1 / sqrt(head_dim) by default.
        dropout_p: the probability that a weight of the softmax is 0, while the others are divided by 1 - dropout_p.
            Which weights these are is a function of dropout_seed, the query's number among all tokens, its head and
            the key's place in its sequence (see `dropout`). Not with a compute_dtype.
        dropout_seed: as `dropout` takes it, an integer of 64 bits or on CUDA an array of one.
        compute_dtype: "bfloat16" rounds what is multiplied, all of it float32, to bfloat16; sums and softmax stay
            float32. Numba does so on CPUs that multiply bfloat16 faster than float32, with exponentials that are
            2^-18 off before they are rounded (2^-9), and computes in float32 on others. Not on CUDA. By default the
            arrays' dtype.
        return_lse: also return the log-sum-exp of the scores, which `attention_backward` needs.
        return_probs: also return the probabilities, before any dropout.
        return_components: also return the three scaled products that scores are the sum of. Not on CUDA.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        output, of the query's shape and dtype, or a tuple of it and what was asked for, in this order: lse (batch,
        heads, length, 2), packed (heads, tokens, 2), in float32 (float64 for float64): the highest score, and the
        logarithm of the sum of exp(score - highest). Their sum is the log-sum-exp, but as one number it would lose
        digits: -1e9 + log(n) is -1e9. (-inf, 0) where a query sees no key. Probabilities (sequences, heads, longest
        query, longest key) in the query's dtype, zeros beyond a sequence. The tuple (content to content, content to
        position, position to content), each like the probabilities, None where the table is None.

    Raises:
        TypeError, ValueError: which argument is wrong, and what was expected.
        BackendUnavailable: if the backend cannot run here.
    """
    asked = return_lse, return_probs, return_components
    if {*map(type, asked)} != {bool}:  # else there is nothing to check: three Python calls less
        asked = tuple(map(checks.boolean, ("return_lse", "return_probs", "return_components"), asked))
    if type(dropout_p) is not float or dropout_p:  # 0.0 needs no check: two Python calls less
        dropout_p = checks.probability("dropout_p", dropout_p)
    number, dropout_seed = checks.seed_or_array("dropout_seed", dropout_seed) if dropout_p else (0, None)
    call = _open(backend, relative, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, dropout_seed)
    with call.on_device():
        inputs, scoring = _normalise(call.backend, call.arrays, relative, is_causal, window, scale)
        check_compute_dtype(compute_dtype, call.backend, inputs[0])
        scoring = _with_dropout(scoring, dropout_p, number, call, compute_dtype)
        if return_components and call.backend == "cupy":
            raise ValueError("return_components is True, but backend 'cupy' has no components: use 'numba' or 'numpy'")
        output, lse, probs, components = call.compute("attention", *inputs, scoring, *asked[1:], compute_dtype)
    if scoring.cu_seqlens is not None:
        output, lse = _packed(output), lse[0]
    parts = output, *([lse] if return_lse else []), *([probs] if return_probs else [])
    if return_components:
        return *call.hand_back(parts), call.hand_back(components)
    return call.hand_back(parts if len(parts) > 1 else output)


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
    window: int | tuple[int | None, int | None] | None = None,
    relative: RelativePositions | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = 0,
    out: tuple[Any, Any, Any] | None = None,
    backend: str | None = None,
) -> Gradients:
    """The gradients of `attention`; the probabilities are computed again from lse (Dao et al. 2022, arXiv:2205.14135).

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        output, lse: what `attention` returned with return_lse=True.
        query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, window, relative, scale, dropout_p,
            dropout_seed, backend: as for `attention`.
        out: arrays for the gradients of query, key and value, of their shapes and dtype, with contiguous rows and
            writable; none overlaps another array of the call. They may be views of one array. By default new ones.

    Returns:
        A named tuple (query, key, value, bias, relative), each of the shape and dtype of its array, None where that is
        None; relative is a `RelativePositions` of the gradients of its floating arrays. Without query_for_position the
        query's gradient holds both of its parts. attn_mask has no gradient.

    Raises:
        As `attention`.
    """
    if type(dropout_p) is not float or dropout_p:  # 0.0 needs no check: two Python calls less
        dropout_p = checks.probability("dropout_p", dropout_p)
    number, dropout_seed = checks.seed_or_array("dropout_seed", dropout_seed) if dropout_p else (0, None)
    call = _open(
        backend, relative, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, dropout_seed,
        grad_output=grad_output, output=output, lse=lse, **_named_targets(out),
    )  # fmt: skip
    count = len(call.arrays) - (0 if out is None else 3)
    *arrays, grad_output, output, lse = call.arrays[:count]
    query, bias = arrays[0], arrays[6]
    with call.on_device():
        if bias is not None and 0 in bias.strides:
            arrays[6] = bias.copy(order="C")  # to the backends a stride of 0 means an axis to sum the gradient over
        inputs, scoring = _normalise(call.backend, arrays, relative, is_causal, window, scale)
        scoring = _with_dropout(scoring, dropout_p, number, call, None)
        checks.floating(call.backend, query=query, grad_output=grad_output, output=output)
        checks.shape(query.shape, grad_output=grad_output, output=output)
        if relative is not None:
            check_longest(relative.longest, scoring.cu_seqlens, scoring.cu_seqlens_k)
        is_packed = scoring.cu_seqlens is not None
        lse = _check_lse(lse, query, is_packed)
        grad_output, output = (_four_axes(array, is_packed) for array in (grad_output, output))
        if out is not None:
            out = _check_targets(call.arrays[count:], arrays[:3], is_packed)
            _check_overlap(call.arrays, relative)
        given = grad_output, *inputs, output, lse, scoring, out
        *grads, grad_bias, grad_relative = call.compute("attention_backward", *given)
        if is_packed:
            grads = [_packed(grad) for grad in grads]
            grad_relative = _packed_relative(grad_relative)
        if bias is not None:
            grad_bias = _sum_to_shape(grad_bias, bias.shape)
    if grad_relative is not None:
        grad_relative = RelativePositions(*call.hand_back(tuple(getattr(grad_relative, it) for it in OF_RELATIVE)))
    return Gradients(*call.hand_back((*grads, grad_bias)), grad_relative)


def _open(
    backend: str | None, relative: RelativePositions | None,
    query: Any, key: Any, value: Any, cu_seqlens: Any, cu_seqlens_k: Any, attn_mask: Any, bias: Any, dropout_seed: Any,
    **of_backward: Any,
) -> dispatch.Call:  # fmt: skip
    """The call; its arrays are _ARRAYS, those of `relative` in the order of its fields, those of the backward."""
    if relative is None:
        terms = {}
    elif type(relative) is RelativePositions:
        terms = {name: getattr(relative, name) for name in OF_RELATIVE}
    else:
        raise TypeError(f"relative is {type(relative).__qualname__}, expected RelativePositions")
    return dispatch.open_call(
        __package__, backend, optional=_OPTIONAL, query=query, key=key,
        value=value, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, attn_mask=attn_mask, bias=bias,
        dropout_seed=dropout_seed, **terms, **of_backward,
    )  # fmt: skip


def _normalise(
    backend: str, arrays: Any, relative: RelativePositions | None, is_causal: Any, window: Any, scale: Any
) -> tuple[tuple[Any, Any, Any], Scoring]:
    """((query, key, value), scoring) as the backends take them, of the arrays of `_open` in their order."""
    query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, _, *terms = arrays
    checks.floating(backend, query=query, key=key, value=value, bias=bias)
    if attn_mask is not None and attn_mask.dtype not in (np.bool_, query.dtype):
        raise TypeError(f"attn_mask has dtype {attn_mask.dtype}, expected bool or {query.dtype} as query has")
    is_packed = cu_seqlens is not None
    if is_packed:
        cu_seqlens, cu_seqlens_k = check_packed(query, key, value, cu_seqlens, cu_seqlens_k)
    else:
        check_dense(query, key, value, cu_seqlens_k)
    if relative is not None:
        relative = _normalise_relative(backend, RelativePositions(*terms, relative.longest), query, key, is_packed)
    if attn_mask is not None or bias is not None:
        shape = scores_shape(query, key, cu_seqlens, cu_seqlens_k, attn_mask, bias)
        attn_mask, bias = broadcast_mask("attn_mask", attn_mask, shape), broadcast_mask("bias", bias, shape)
    is_causal, window = checks.boolean("is_causal", is_causal), check_window(window)
    scale = scale_or_default(scale, query)
    scoring = Scoring(cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, window, relative, scale)
    return (_four_axes(query, is_packed), _four_axes(key, is_packed), _four_axes(value, is_packed)), scoring


def _with_dropout(scoring: Scoring, p: float, number: int, call: dispatch.Call, compute_dtype: str | None) -> Scoring:
    """The seed is the call's array, where it has one, or else the number."""
    if p == 0:
        return scoring
    seed = call.arrays[_ARRAYS.index("dropout_seed")]
    checks.seed_array(call.backend, dropout_seed=seed)
    scoring = scoring._replace(dropout_p=p, dropout_seed=number if seed is None else seed)
    if compute_dtype is not None:
        raise ValueError(f"dropout_p is {p}, but compute_dtype is {compute_dtype!r}, which has none")
    return scoring


def _normalise_relative(
    backend: str, relative: RelativePositions, query: Any, key: Any, is_packed: bool
) -> RelativePositions:
    tables = {name: getattr(relative, name) for name in ("position_key", "position_query", "position_bias")}
    per_query = {name: getattr(relative, name) for name in ("query_for_position", "segment_scores")}
    checks.floating(backend, query=query, **tables, **per_query)
    relative = check_relative(relative, query, key)
    changes = {name: _unit_columns(array) for name, array in tables.items() if array is not None}
    changes |= {name: _four_axes(array, is_packed) for name, array in per_query.items() if array is not None}
    if is_packed and relative.segment_ids is not None:
        changes |= {"segment_ids": relative.segment_ids[None], "segment_ids_k": relative.segment_ids_k[None]}
    return replace(relative, **changes)


def _four_axes(array: Any, is_packed: bool) -> Any:
    """(batch, heads, length, head_dim), the last axis contiguous; a view where possible."""
    return _unit_columns(array.transpose(1, 0, 2)[None] if is_packed else array)


def _unit_columns(array: Any) -> Any:
    """`array` with contiguous rows; a view where possible."""
    return array if array.strides[-1] == array.itemsize else array.copy(order="C")


def _packed(array: Any) -> Any:
    """(1, heads, tokens, head_dim) as (tokens, heads, head_dim)."""
    return array[0].transpose(1, 0, 2)


def _packed_relative(grads: RelativePositions | None) -> RelativePositions | None:
    """The gradients of relative terms with those of queries packed."""
    if grads is None:
        return None
    per_query = {name: getattr(grads, name) for name in ("query_for_position", "segment_scores")}
    return replace(grads, **{name: None if it is None else _packed(it) for name, it in per_query.items()})


def _named_targets(out: Any) -> dict[str, Any]:
    if out is None:
        return {}
    if not isinstance(out, tuple) or len(out) != 3:
        raise TypeError(f"out is {out!r:.100}, expected a tuple of three arrays")
    return dict(zip(_TARGETS, out, strict=True))


def _check_overlap(arrays: Any, relative: RelativePositions | None) -> None:
    """What the gradients of query, key and value go to, the last three arrays, overlaps no other array."""
    of_relative = () if relative is None else OF_RELATIVE
    names = *_ARRAYS, *of_relative, "grad_output", "output", "lse", *_TARGETS
    named = dict(zip(names, arrays, strict=True))
    for name in _TARGETS:
        checks.overlaps_none(name, named)


def _check_targets(targets: Any, arrays: Any, is_packed: bool) -> tuple[Any, ...]:
    """Where the gradients of these arrays go, with four axes."""
    for name, target, array in zip(_TARGETS, targets, arrays, strict=True):
        checks.shape(array.shape, **{name: target})
        if target.dtype != array.dtype:
            raise TypeError(f"{name} has dtype {target.dtype}, expected {array.dtype}")
        checks.writable_rows(name, target)
    return tuple(target.transpose(1, 0, 2)[None] if is_packed else target for target in targets)


def _check_lse(lse: Any, query: Any, is_packed: bool) -> Any:
    """lse as (batch, heads, length, 2)."""
    expected = working_dtype(query.dtype)
    if lse.dtype != expected:
        raise TypeError(f"lse has dtype {lse.dtype}, expected {expected} for a query of {query.dtype}")
    rows = (query.shape[1], query.shape[0]) if is_packed else query.shape[:3]
    checks.shape((*rows, 2), lse=lse)
    return lse[None] if is_packed else lse


def _sum_to_shape(grad: Any, shape: tuple[int, ...]) -> Any:
    """grad, (sequences, heads, longest query, longest key), summed over the axes along which `shape` was broadcast.

    A backend may have done so already: then grad has size 1 there.
    """
    padded = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(axis for axis in range(4) if padded[axis] == 1 and grad.shape[axis] != 1)
    return (grad.sum(axis=axes, keepdims=True) if axes else grad).reshape(shape)
