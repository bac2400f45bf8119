"""The operations that entities need (LUKE), each with its gradient rule, as those of bertcore.nn.functional."""

from typing import Any

from bertcore import kernels
from bertcore.kernels.precision import working_dtype
from bertcore.nn.functional import split_heads
from bertcore.tape import differentiable


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
        query, key, value, _ = kernels.attention_backward(grad_output, *doubled, output, lse, **options)
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


def _mean_of_rows(table, rows):
    xp = kernels.array_module(rows)
    total = 0
    for column in rows.T:  # as long as the longest mention: a few
        row = kernels.embedding(xp.maximum(column, 0), table)
        wide = row.astype(working_dtype(row.dtype), copy=False)
        total = total + xp.where(column[:, None] >= 0, wide, xp.zeros((), wide.dtype))
    return (total / _counts(rows, total.dtype)).astype(row.dtype, copy=False)


def _counts(rows, dtype):
    """How many rows there are to be averaged, (means, 1), at least 1."""
    return kernels.array_module(rows).maximum((rows >= 0).sum(axis=1), 1).astype(dtype)[:, None]


def _mean_of_rows_with_pullback(table, *, rows):
    def pullback(grad):
        means, places = kernels.array_module(rows).nonzero(rows >= 0)
        wide = grad.astype(working_dtype(grad.dtype), copy=False)
        shares = (wide / _counts(rows, wide.dtype)).astype(grad.dtype, copy=False)
        return (kernels.embedding_backward(shares[means], rows[means, places], table.shape[0]),)

    return _mean_of_rows(table, rows), pullback


@differentiable(_mean_of_rows_with_pullback)
def mean_of_rows(table: Any, *, rows: Any) -> Any:
    """The mean of several rows of `table` (rows, features), (means, features), zeros where there are none.

    `rows` are integers, (means, most of a mean) with at least one column, -1 where a mean has no more.
    """
    return _mean_of_rows(table, rows)


def _merge_rows(first, second, first_rows, second_rows):
    merged = kernels.array_module(first).empty((first.shape[0] + second.shape[0], first.shape[1]), first.dtype)
    merged[first_rows], merged[second_rows] = first, second
    return merged


def _merge_rows_with_pullback(first, second, *, first_rows, second_rows):
    return _merge_rows(first, second, first_rows, second_rows), lambda grad: (grad[first_rows], grad[second_rows])


@differentiable(_merge_rows_with_pullback)
def merge_rows(first: Any, second: Any, *, first_rows: Any, second_rows: Any) -> Any:
    """The rows of both arrays in one, (rows of both, features), where `first_rows` and `second_rows` say."""
    return _merge_rows(first, second, first_rows, second_rows)
