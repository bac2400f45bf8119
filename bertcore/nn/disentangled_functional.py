"""The operations of disentangled attention (DeBERTa), each with its gradient rule, as in bertcore.nn.functional."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn.functional import sequence_spans, split_heads
from bertcore.tape import differentiable


def _attention_of(
    query: Any, position_key: Any, position_query: Any, distance_rows: Any
) -> tuple[Callable, Callable, dict[str, Any]]:
    """The kernel, its backward, and what they take of positions: plain attention's where there is no table."""
    tables = {"position_key": position_key, "position_query": position_query}
    tables = {name: table.reshape(-1, *query.shape[1:]) for name, table in tables.items() if table is not None}
    if not tables:
        return kernels.attention, kernels.attention_backward, {}
    return kernels.relative_attention, kernels.relative_attention_backward, tables | {"distance_rows": distance_rows}


def _disentangled_attention_with_pullback(
    qkv, position_key, position_query, *, num_heads, is_by_head, distance_rows, attentions=None, components=None,
    compute_dtype=None, **masks,
):  # fmt: skip
    assert compute_dtype is None, "gradients need the arrays' own precision"
    heads = split_heads(qkv, num_heads, is_by_head=is_by_head)
    attend, attend_backward, positions = _attention_of(heads[0], position_key, position_query, distance_rows)
    options = positions | masks
    output, lse, *probabilities = attend(*heads, **options, return_lse=True, return_probs=attentions is not None)
    if attentions is not None:
        attentions.extend(probabilities)
    _note_components(components, heads, options)

    def pullback(grad):
        grads = attend_backward(grad.reshape(heads[0].shape), *heads, output, lse, **options)
        grad_qkv = qkv.copy()  # in the memory and dtype of qkv; every entry is overwritten
        for target, part in zip(split_heads(grad_qkv, num_heads, is_by_head=is_by_head), grads[:3], strict=True):
            target[...] = part
        tables = (getattr(grads, name, None) for name in ("position_key", "position_query"))
        return grad_qkv, *(None if table is None else table.reshape(table.shape[0], -1) for table in tables)

    return output.reshape(qkv.shape[0], qkv.shape[1] // 3), pullback


@differentiable(_disentangled_attention_with_pullback)
def disentangled_attention(
    qkv: Any,
    position_key: Any,
    position_query: Any,
    *,
    num_heads: int,
    is_by_head: bool,
    distance_rows: Any,
    attentions: list | None = None,
    components: list | None = None,
    compute_dtype: str | None = None,
    **masks: Any,
) -> Any:
    """Attention by content and by relative position, within each packed sequence (He et al. 2021, arXiv:2006.03654).

    Args:
        qkv: query, key and value side by side, (tokens, 3 * hidden): first all queries, then all keys, then all values;
            with `is_by_head` those of each head in turn.
        position_key, position_query: the tables of `kernels.relative_attention`, (rows, hidden), or None.
        distance_rows: as there; not read without a table.
        attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest).
        components: a list to which a tuple of scaled scores is appended, like the probabilities each: content to
            content, content to position and position to content, None for a table that is None.
        compute_dtype: as there; not while a tape records.
        masks: cu_seqlens, attn_mask and scale, as there.

    Returns:
        (tokens, hidden).
    """
    heads = split_heads(qkv, num_heads, is_by_head=is_by_head)
    attend, _, positions = _attention_of(heads[0], position_key, position_query, distance_rows)
    options = positions | masks
    if attentions is None:
        output = attend(*heads, **options, compute_dtype=compute_dtype)
    else:
        output, probabilities = attend(*heads, **options, compute_dtype=compute_dtype, return_probs=True)
        attentions.append(probabilities)
    _note_components(components, heads, options)
    return output.reshape(qkv.shape[0], qkv.shape[1] // 3)


def _note_components(components, heads, options):
    if components is None:
        return
    has_positions = "distance_rows" in options
    if not has_positions:  # of which the kernel wants at least one table
        query = heads[0]
        nothing = kernels.array_module(query).zeros((1, *query.shape[1:]), query.dtype)
        options = options | {"position_key": nothing, "distance_rows": kernels.to_backend(np.zeros(1, np.int32))}
    _, parts = kernels.relative_attention(*heads, **options, return_components=True)
    components.append(parts if has_positions else (parts[0], None, None))


def _blind_rows(is_real: Any, cu_seqlens: Any) -> list[tuple[slice, Any]]:
    """Of each sequence with tokens that see nothing: its tokens, and which of them those are."""
    spans = [slice(first, end) for first, end in sequence_spans(cu_seqlens)]
    return [(span, ~is_real[span]) for span in spans if not is_real[span].all()]


def _attend_to_all_alike_with_pullback(attended, qkv, *, num_heads, is_by_head, is_real, cu_seqlens):
    blind = _blind_rows(is_real, cu_seqlens)

    def pullback(grad):
        grad_qkv = kernels.array_module(grad).zeros(qkv.shape, grad.dtype)
        grad_value = split_heads(grad_qkv, num_heads, is_by_head=is_by_head)[2]
        for span, rows in blind:
            grad_value[span] += grad[span][rows].sum(axis=0).reshape(num_heads, -1) / len(rows)
        return grad, grad_qkv  # what sees nothing has no probabilities, and so no gradient in attention

    output = attended.copy()
    value = split_heads(qkv, num_heads, is_by_head=is_by_head)[2]
    for span, rows in blind:
        output[span][rows] = value[span].mean(axis=0).reshape(-1)
    return output, pullback


@differentiable(_attend_to_all_alike_with_pullback)
def attend_to_all_alike(
    attended: Any, qkv: Any, *, num_heads: int, is_by_head: bool, is_real: Any, cu_seqlens: Any
) -> Any:
    """`attended`, (tokens, hidden), but for tokens that are not `is_real`, (tokens,) booleans: these have the mean of
    all values of their sequence, as in transformers' DeBERTa, where all their scores are one number.

    `qkv`, `num_heads`, `is_by_head` and `cu_seqlens` are those of `disentangled_attention`.
    """
    places = {"num_heads": num_heads, "is_by_head": is_by_head, "is_real": is_real, "cu_seqlens": cu_seqlens}
    return _attend_to_all_alike_with_pullback(attended, qkv, **places)[0]


def _bias_by_head(query_bias, value_bias, num_heads):
    parts = query_bias, kernels.array_module(query_bias).zeros_like(query_bias), value_bias
    return kernels.array_module(query_bias).stack([part.reshape(num_heads, -1) for part in parts], axis=1).reshape(-1)


def _bias_by_head_with_pullback(query_bias, value_bias, *, num_heads):
    def pullback(grad):
        parts = grad.reshape(num_heads, 3, -1)
        return parts[:, 0].reshape(-1), parts[:, 2].reshape(-1)

    return _bias_by_head(query_bias, value_bias, num_heads), pullback


@differentiable(_bias_by_head_with_pullback)
def bias_by_head(query_bias: Any, value_bias: Any, *, num_heads: int) -> Any:
    """Biases of queries and values, (hidden,) each, as that of (query, key, value) of each head in turn, (3 * hidden,);
    keys have none."""
    return _bias_by_head(query_bias, value_bias, num_heads)
