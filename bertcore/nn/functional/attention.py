"""Attention within packed sequences, and what stands around it, each with its gradient rule."""

from typing import Any

from bertcore import kernels
from bertcore.kernels.deferred import computed
from bertcore.nn.functional.rows import column_sums, sequence_spans, widened
from bertcore.tape import differentiable


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
    *, distance_rows, segment_ids=None, segment_ids_k=None, attentions=None, compute_dtype=None, **where,
):  # fmt: skip
    assert compute_dtype is None, "gradients need the arrays' own precision"
    relative = kernels.RelativePositions(
        distance_rows, position_key, position_query, query_for_position, None, segment_ids, segment_ids_k,
        segment_scores,
    )  # fmt: skip
    where["relative"] = relative
    options = {"return_lse": True, "return_probs": attentions is not None}
    output, lse, *probabilities = kernels.attention(query, key, value, **where, **options)
    if attentions is not None:
        attentions.extend(probabilities)

    def pullback(grad):
        grads = kernels.attention_backward(grad, query, key, value, output, lse, **where)
        terms = grads.relative
        of_terms = terms.position_key, terms.position_query, terms.query_for_position, terms.segment_scores
        return *grads[:3], *of_terms

    return output, pullback


@differentiable(_relative_attention_with_pullback)
def relative_attention(
    query: Any, key: Any, value: Any, position_key: Any = None, position_query: Any = None,
    query_for_position: Any = None, segment_scores: Any = None,
    *, distance_rows: Any, segment_ids: Any = None, segment_ids_k: Any = None, attentions: list | None = None,
    **where: Any,
) -> Any:  # fmt: skip
    """Attention that depends on relative positions within each packed sequence; see `kernels.attention`.

    Args:
        query, key, value: as there.
        position_key, position_query, query_for_position, segment_scores, distance_rows, segment_ids, segment_ids_k: as
            in `kernels.RelativePositions`.
        attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest of the keys).
        where: cu_seqlens, cu_seqlens_k, attn_mask, scale as there; and compute_dtype, not while a tape records.

    Returns:
        (tokens, heads, head_dim).
    """
    relative = kernels.RelativePositions(
        distance_rows, position_key, position_query, query_for_position, None, segment_ids, segment_ids_k,
        segment_scores,
    )  # fmt: skip
    if attentions is None:
        return kernels.attention(query, key, value, relative=relative, **where)
    output, probabilities = kernels.attention(query, key, value, relative=relative, **where, return_probs=True)
    attentions.append(probabilities)
    return output


def _relative(
    query: Any, position_key: Any, position_query: Any, distance_rows: Any
) -> kernels.RelativePositions | None:
    """What the kernel takes of positions; None where there is no table."""
    if position_key is None and position_query is None:
        return None
    tables = (None if it is None else it.reshape(-1, *query.shape[1:]) for it in (position_key, position_query))
    return kernels.RelativePositions(distance_rows, *tables)


def _disentangled_attention_with_pullback(
    qkv, position_key, position_query, *, num_heads, is_by_head, distance_rows, attentions=None, components=None,
    compute_dtype=None, **masks,
):  # fmt: skip
    assert compute_dtype is None, "gradients need the arrays' own precision"
    heads = split_heads(qkv, num_heads, is_by_head=is_by_head)
    options = {"relative": _relative(heads[0], position_key, position_query, distance_rows), **masks}
    asked = {"return_lse": True, "return_probs": attentions is not None}
    output, lse, *probabilities = kernels.attention(*heads, **options, **asked)
    if attentions is not None:
        attentions.extend(probabilities)
    _note_components(components, heads, options)

    def pullback(grad):
        grads = kernels.attention_backward(grad.reshape(heads[0].shape), *heads, output, lse, **options)
        grad_qkv = qkv.copy()  # in the memory and dtype of qkv; every entry is overwritten
        for target, part in zip(split_heads(grad_qkv, num_heads, is_by_head=is_by_head), grads[:3], strict=True):
            target[...] = part
        tables = (getattr(grads.relative, name, None) for name in ("position_key", "position_query"))
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
        position_key, position_query: the tables of `kernels.RelativePositions`, (rows, hidden), or None.
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
    options = {"relative": _relative(heads[0], position_key, position_query, distance_rows), **masks}
    if attentions is None:
        output = kernels.attention(*heads, **options, compute_dtype=compute_dtype)
    else:
        output, probabilities = kernels.attention(*heads, **options, compute_dtype=compute_dtype, return_probs=True)
        attentions.append(probabilities)
    _note_components(components, heads, options)
    return output.reshape(qkv.shape[0], qkv.shape[1] // 3)


def _note_components(components, heads, options):
    if components is not None:
        components.append(kernels.attention(*heads, **options, return_components=True)[1])


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


def _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows):
    """Query, key and value of `entity_aware_attention`, (tokens, heads, 2 * head_dim) each."""
    query, key, value = split_heads(qkv, num_heads)
    tokens, heads, size = query.shape
    xp = kernels.array_module(qkv)
    double_query, double_key, double_value = (xp.zeros((tokens, heads, 2 * size), qkv.dtype) for _ in range(3))
    double_query[:, :, :size], double_value[:, :, :size] = query, value
    double_query[word_rows, :, size:] = word_queries.reshape(-1, heads, size)
    by_kind = entity_queries.reshape(entity_queries.shape[0], 2, heads, size).transpose(0, 2, 1, 3)
    double_query[entity_rows] = by_kind.reshape(-1, heads, 2 * size)
    double_key[word_rows, :, :size] = key[word_rows]
    double_key[entity_rows, :, size:] = key[entity_rows]
    return double_query, double_key, double_value


def _entity_aware_attention_with_pullback(
    qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, cu_seqlens, attn_mask=None,
    attentions=None, compute_dtype=None,
):  # fmt: skip
    assert compute_dtype is None, "gradients need the arrays' own precision"
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    heads, size = num_heads, doubled[0].shape[2] // 2
    options = {"cu_seqlens": cu_seqlens, "attn_mask": attn_mask, "scale": size**-0.5}
    output, lse, *probabilities = kernels.attention(
        *doubled, **options, return_lse=True, return_probs=attentions is not None
    )
    if attentions is not None:
        attentions.extend(probabilities)

    def pullback(grad):
        xp = kernels.array_module(grad)
        grad_output = xp.zeros(output.shape, grad.dtype)
        grad_output[:, :, :size] = grad.reshape(-1, heads, size)
        query, key, value, *_ = kernels.attention_backward(grad_output, *doubled, output, lse, **options)
        grad_qkv = xp.zeros(qkv.shape, qkv.dtype)
        grad_query, grad_key, grad_value = split_heads(grad_qkv, heads)
        grad_query[word_rows] = query[word_rows, :, :size]
        grad_key[word_rows], grad_key[entity_rows] = key[word_rows, :, :size], key[entity_rows, :, size:]
        grad_value[...] = value[:, :, :size]
        by_kind = query[entity_rows].reshape(-1, heads, 2, size).transpose(0, 2, 1, 3)
        words = query[word_rows, :, size:].reshape(word_queries.shape)
        return grad_qkv, words, by_kind.reshape(entity_queries.shape)

    return output[:, :, :size].reshape(-1, heads * size), pullback


@differentiable(_entity_aware_attention_with_pullback)
def entity_aware_attention(
    qkv: Any,
    word_queries: Any,
    entity_queries: Any,
    *,
    num_heads: int,
    word_rows: Any,
    entity_rows: Any,
    cu_seqlens: Any,
    attn_mask: Any = None,
    attentions: list | None = None,
    compute_dtype: str | None = None,
) -> Any:
    """Attention in which a token has one query for words and another one for entities (Yamada et al. 2020,
    arXiv:2010.01057, section 3.2), within each packed sequence.

    It is attention with heads of twice the size: a token's two queries side by side, its key in the half of its kind
    and zeros in the other, so that their product is that of the key with the query for its kind. Two attentions, over
    words and over entities, merged by their log-sum-exp, would multiply half as much; that half is 3% of the products
    of LUKE-base's layers at 128 tokens and 10% at 512, and gradients would need that of the log-sum-exp.

    Args:
        qkv: for all tokens query, key and value side by side, (tokens, 3 * hidden); the query is words' for words, that
            of entities is not read.
        word_queries: words' queries for entities, (words, hidden).
        entity_queries: entities' queries for words and for entities side by side, (entities, 2 * hidden).
        word_rows, entity_rows: where words and entities stand among the tokens, integers (words,) and (entities,).
        num_heads, cu_seqlens, attn_mask, attentions, compute_dtype: as for `self_attention`.

    Returns:
        (tokens, hidden).
    """
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    options = {"cu_seqlens": cu_seqlens, "attn_mask": attn_mask, "scale": size**-0.5, "compute_dtype": compute_dtype}
    if attentions is None:
        output = kernels.attention(*doubled, **options)
    else:
        output, probabilities = kernels.attention(*doubled, **options, return_probs=True)
        attentions.append(probabilities)
    return output[:, :, :size].reshape(-1, num_heads * size)


def _segment_scores(queries, bias, table):
    wide, bias = widened(queries), widened(bias)
    scores = [(wide * row).sum(axis=-1) + (bias * row).sum(axis=-1) for row in widened(table)]
    return kernels.array_module(queries).stack(scores, axis=-1).astype(queries.dtype, copy=False)


def _segment_scores_with_pullback(queries, bias, table):
    def pullback(grad):
        parts = [grad[..., column, None] for column in range(2)]
        grad_queries = sum(part * row for part, row in zip(parts, table, strict=True))
        grad_table = [column_sums(part * queries) + column_sums(part) * bias for part in parts]
        return grad_queries, column_sums(grad_queries), kernels.array_module(grad).stack(grad_table)

    return _segment_scores(queries, bias, table), pullback


@differentiable(_segment_scores_with_pullback)
def segment_scores(queries: Any, bias: Any, table: Any) -> Any:
    """(queries + bias) times the two vectors of each head: (tokens, heads, head_dim), (heads, head_dim) and (2, heads,
    head_dim) -> (tokens, heads, 2) (Yang et al. 2019, arXiv:1906.08237, section 2.5)."""
    return _segment_scores(computed(queries), bias, table)
