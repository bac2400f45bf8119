"""The operations that model code calls: the kernels, each with its gradient rule.

All work on packed tokens: activations are (tokens, features), with cu_seqlens where sequences matter.
"""

import itertools
from typing import Any

from bertcore import kernels
from bertcore.tape import differentiable


def _linear_with_pullback(input, weight, bias, residual=None, *, activation=None):
    before = kernels.linear(input, weight, bias)  # kept: the activation's gradient needs it
    output = before if activation is None else kernels.activation(before, activation)

    def pullback(grad):
        grad_before = grad if activation is None else kernels.activation_backward(grad, before, activation)
        return *kernels.linear_backward(grad_before, input, weight, bias), None if residual is None else grad

    return output if residual is None else output + residual, pullback


@differentiable(_linear_with_pullback)
def linear(input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None) -> Any:
    """activation(input @ weight.T + bias) + residual; see `kernels.linear`."""
    return kernels.linear(input, weight, bias, activation=activation, residual=residual)


def _layer_norm_with_pullback(input, weight, bias, residual=None, *, eps):
    def pullback(grad):
        grads = kernels.layer_norm_backward(grad, input, weight, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.layer_norm(input, weight, bias, eps, residual=residual), pullback


@differentiable(_layer_norm_with_pullback)
def layer_norm(input: Any, weight: Any, bias: Any, residual: Any = None, *, eps: float) -> Any:
    """Layer normalisation of input + residual over the last axis; see `kernels.layer_norm`."""
    return kernels.layer_norm(input, weight, bias, eps, residual=residual)


def _take_rows_with_pullback(table, *, rows, padding_row=None):
    def pullback(grad):
        grad_table = kernels.embedding_backward(grad, rows, table.shape[0])
        if padding_row is not None:
            grad_table[padding_row] = 0
        return (grad_table,)

    return kernels.embedding(rows, table), pullback


@differentiable(_take_rows_with_pullback)
def take_rows(table: Any, *, rows: Any, padding_row: int | None = None) -> Any:
    """The rows of `table` (rows, features) at the integers `rows`: an embedding, or a choice of tokens.

    `padding_row` gets no gradient from here, as torch.nn.Embedding's padding_idx does not.
    """
    return kernels.embedding(rows, table)


@differentiable(lambda left, right: (left + right, lambda grad: (grad, grad)))
def add(left: Any, right: Any) -> Any:
    """left + right, of one shape."""
    return left + right


def _scaled(array, factor):
    # NumPy makes a scalar of an array without axes, and float32 of bfloat16.
    return kernels.array_module(array).asarray(array * factor, array.dtype)


@differentiable(lambda array, *, factor: (_scaled(array, factor), lambda grad: (_scaled(grad, factor),)))
def scale(array: Any, *, factor: float) -> Any:
    """array * factor."""
    return _scaled(array, factor)


def split_heads(joined: Any, num_heads: int, count: int = 3, *, is_by_head: bool = False) -> tuple[Any, ...]:
    """(tokens, count * hidden) -> `count` views (tokens, heads, head_dim): query, key and value, which stand one after
    the other for all heads, or with `is_by_head` for each head."""
    tokens, width = joined.shape
    size = width // (count * num_heads)
    if is_by_head:
        heads = joined.reshape(tokens, num_heads, count, size)
        return tuple(heads[:, :, index] for index in range(count))
    heads = joined.reshape(tokens, count, num_heads, size)
    return tuple(heads[:, index] for index in range(count))


def _heads_of_all(projected: tuple[Any, ...], num_heads: int) -> list[Any]:
    """Query, key and value, side by side in one array or in several, as views of those."""
    hidden = sum(part.shape[1] for part in projected) // 3
    return [view for part in projected for view in split_heads(part, num_heads, part.shape[1] // hidden)]


def _self_attention_with_pullback(*projected, num_heads, attentions=None, compute_dtype=None, **where):
    assert compute_dtype is None, "gradients need the arrays' own precision"
    query, key, value = _heads_of_all(projected, num_heads)
    options = {"return_lse": True, "return_probs": attentions is not None}
    output, lse, *probabilities = kernels.attention(query, key, value, **where, **options)
    if attentions is not None:
        attentions.extend(probabilities)

    def pullback(grad):
        grads = kernels.attention_backward(grad.reshape(query.shape), query, key, value, output, lse, **where)
        parts = tuple(part.copy() for part in projected)  # in their memory and dtype; every entry is overwritten
        for target, part in zip(_heads_of_all(parts, num_heads), grads[:3], strict=True):
            target[...] = part
        return parts

    return output.reshape(query.shape[0], query.shape[1] * query.shape[2]), pullback


@differentiable(_self_attention_with_pullback)
def self_attention(
    *projected: Any,
    num_heads: int,
    cu_seqlens: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    attentions: list | None = None,
    compute_dtype: str | None = None,
) -> Any:
    """Scaled dot-product attention within each packed sequence.

    Args:
        projected: query, key and value side by side, (tokens, 3 * hidden), in one array or in several.
        num_heads: heads that divide the hidden size.
        cu_seqlens: int32 offsets, (sequences + 1,).
        attn_mask, is_causal, scale: as for `kernels.attention`.
        attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest).
        compute_dtype: as for `kernels.attention`; not while a tape records.

    Returns:
        (tokens, hidden).
    """
    heads = _heads_of_all(projected, num_heads)
    options = {"cu_seqlens": cu_seqlens, "attn_mask": attn_mask, "is_causal": is_causal, "scale": scale}
    options["compute_dtype"] = compute_dtype
    if attentions is None:
        output = kernels.attention(*heads, **options)
    else:
        output, probabilities = kernels.attention(*heads, **options, return_probs=True)
        attentions.append(probabilities)
    tokens, num_heads, size = heads[0].shape
    return output.reshape(tokens, num_heads * size)


def _relative_attention_with_pullback(
    query, key, value, position_key=None, position_query=None, query_for_position=None, segment_scores=None,
    *, attentions=None, compute_dtype=None, **where,
):  # fmt: skip
    assert compute_dtype is None, "gradients need the arrays' own precision"
    where |= {"position_key": position_key, "position_query": position_query}
    where |= {"query_for_position": query_for_position, "segment_scores": segment_scores}
    options = {"return_lse": True, "return_probs": attentions is not None}
    output, lse, *probabilities = kernels.relative_attention(query, key, value, **where, **options)
    if attentions is not None:
        attentions.extend(probabilities)

    def pullback(grad):
        return kernels.relative_attention_backward(grad, query, key, value, output, lse, **where)

    return output, pullback


@differentiable(_relative_attention_with_pullback)
def relative_attention(
    query: Any, key: Any, value: Any, position_key: Any = None, position_query: Any = None,
    query_for_position: Any = None, segment_scores: Any = None,
    *, attentions: list | None = None, **where: Any,
) -> Any:  # fmt: skip
    """Attention that depends on relative positions within each packed sequence; see `kernels.relative_attention`.

    Args:
        query, key, value, position_key, position_query, query_for_position, segment_scores: as there.
        attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest of the keys).
        where: distance_rows, segment_ids, segment_ids_k, cu_seqlens, cu_seqlens_k, attn_mask, scale as there; and
            compute_dtype, not while a tape records.

    Returns:
        (tokens, heads, head_dim).
    """
    where |= {"position_key": position_key, "position_query": position_query}
    where |= {"query_for_position": query_for_position, "segment_scores": segment_scores}
    if attentions is None:
        return kernels.relative_attention(query, key, value, **where)
    output, probabilities = kernels.relative_attention(query, key, value, **where, return_probs=True)
    attentions.append(probabilities)
    return output


def sequence_spans(cu_seqlens: Any) -> list[tuple[int, int]]:
    """(first token, end) of each sequence that has tokens."""
    return [(first, end) for first, end in itertools.pairwise(cu_seqlens.tolist()) if end > first]


def _sequence_mean(hidden, cu_seqlens):
    means = kernels.array_module(hidden).zeros((len(sequence_spans(cu_seqlens)), hidden.shape[1]), hidden.dtype)
    for mean, (first, end) in zip(means, sequence_spans(cu_seqlens), strict=True):
        mean[...] = hidden[first:end].mean(axis=0)
    return means


def _sequence_mean_with_pullback(hidden, *, cu_seqlens):
    def pullback(grad):
        spread = kernels.array_module(grad).empty(hidden.shape, grad.dtype)
        for row, (first, end) in zip(grad, sequence_spans(cu_seqlens), strict=True):
            spread[first:end] = row / (end - first)
        return (spread,)

    return _sequence_mean(hidden, cu_seqlens), pullback


@differentiable(_sequence_mean_with_pullback)
def sequence_mean(hidden: Any, *, cu_seqlens: Any) -> Any:
    """The mean over each sequence that has tokens, (sequences, features)."""
    return _sequence_mean(hidden, cu_seqlens)


def _activation_with_pullback(input, *, name):
    return kernels.activation(input, name), lambda grad: (kernels.activation_backward(grad, input, name),)


@differentiable(_activation_with_pullback)
def activation(input: Any, *, name: str) -> Any:
    """An activation by its name in `kernels.activation`."""
    return kernels.activation(input, name)


@differentiable(lambda array, *, shape: (array.reshape(shape), lambda grad: (grad.reshape(array.shape),)))
def reshape(array: Any, *, shape: tuple[int, ...]) -> Any:
    """`array` in another shape."""
    return array.reshape(shape)


def _columns_with_pullback(array, *, first, last):
    def pullback(grad):
        full = kernels.array_module(grad).zeros(array.shape, grad.dtype)
        full[:, first:last] = grad
        return (full,)

    return array[:, first:last], pullback


@differentiable(_columns_with_pullback)
def columns(array: Any, *, first: int, last: int) -> Any:
    """The columns from `first` up to `last` of (rows, features)."""
    return array[:, first:last]


def _cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        return (kernels.cross_entropy_backward(grad, logits, labels),)

    return kernels.cross_entropy(logits, labels), pullback


@differentiable(_cross_entropy_with_pullback)
def cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`."""
    return kernels.cross_entropy(logits, labels)


def _mean_squared_error_with_pullback(predictions, *, labels):
    difference = predictions - labels

    def pullback(grad):
        return (difference * (2 * grad / max(difference.size, 1)),)

    return (difference * difference).mean(), pullback


@differentiable(_mean_squared_error_with_pullback)
def mean_squared_error(predictions: Any, *, labels: Any) -> Any:
    """The mean of (predictions - labels)^2, of one shape."""
    return ((predictions - labels) ** 2).mean()


def _binary_cross_entropy(logits, labels):
    xp = kernels.array_module(logits)
    # log(1 + exp(x)) without overflow
    return (xp.maximum(logits, 0) - logits * labels + xp.log1p(xp.exp(-xp.abs(logits)))).mean()


def _binary_cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        xp = kernels.array_module(logits)
        probability = xp.exp(xp.minimum(logits, 0)) / (1 + xp.exp(-xp.abs(logits)))
        return ((probability - labels) * (grad / max(logits.size, 1)),)

    return _binary_cross_entropy(logits, labels), pullback


@differentiable(_binary_cross_entropy_with_pullback)
def binary_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy of labels in [0, 1] and the logistic function of `logits`, of one shape."""
    return _binary_cross_entropy(logits, labels)


def widened(array: Any) -> Any:
    """`array` in float32 if it is of lower precision: what sums are taken in."""
    return array.astype("float32") if array.dtype.itemsize < 4 else array


def log_softmax(scores: Any) -> Any:
    """The logarithm of the softmax over the last axis of a plain array, in float32 if that is of lower precision."""
    wide = widened(scores)
    xp, shifted = kernels.array_module(wide), wide - wide.max(axis=-1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))


def _soft_cross_entropy(logits, labels):
    return -(log_softmax(logits) * labels).sum(axis=-1).mean().astype(logits.dtype, copy=False)


def _soft_cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        probabilities = kernels.array_module(logits).exp(log_softmax(logits))
        weights = widened(labels).sum(axis=-1, keepdims=True)
        grad_logits = (probabilities * weights - labels) * (grad / max(len(logits), 1))
        return (grad_logits.astype(logits.dtype, copy=False),)

    return _soft_cross_entropy(logits, labels), pullback


@differentiable(_soft_cross_entropy_with_pullback)
def soft_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean over rows of the cross entropy of the softmax of `logits` and probabilities `labels`, of one shape."""
    return _soft_cross_entropy(logits, labels)
