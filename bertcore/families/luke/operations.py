"""What LUKE alone computes, with gradient rules: attention with a query for each kind of key, and means of rows."""

from typing import Any

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.kernels.precision import working_dtype
from bertcore.nn.functional import split_heads
from bertcore.nn.functional.attention import (
    attend,
    attend_with_pullback,
    note_probabilities,
    with_joined_heads,
    with_seed,
)
from bertcore.nn.operation import operation


@operation()
def average_rows(run: Pass, table: Any, *, rows: Any) -> Any:
    """Means of rows of `table`, (rows, features) -> (means, features); zeros for a mean of no rows.

    `rows` are integers, (means, most rows of a mean), with at least one column; -1 where a mean has no more.
    """
    xp, wide_dtype = kernels.array_module(rows), working_dtype(table.dtype)
    counts = xp.maximum((rows >= 0).sum(axis=1), 1).astype(wide_dtype)[:, None]

    def pullback(grad):
        means, places = xp.nonzero(rows >= 0)
        shares = (grad.astype(wide_dtype, copy=False) / counts).astype(grad.dtype, copy=False)
        return (
            kernels.embedding_backward(
                shares[means], kernels.EmbeddingSaved(rows[means, places], table.shape[0]), backend=run.backend
            ),
        )

    total = 0
    for column in rows.T:  # as long as the longest mention: a few
        wide = kernels.embedding(xp.maximum(column, 0), table, backend=run.backend).astype(wide_dtype, copy=False)
        total = total + xp.where(column[:, None] >= 0, wide, xp.zeros((), wide_dtype))
    return (total / counts).astype(table.dtype, copy=False), pullback


@operation()
def merge_rows(run: Pass, first: Any, second: Any, *, first_rows: Any, second_rows: Any) -> Any:
    """One array of the rows of both, (rows of both, features): those of `first` at `first_rows`, of `second` at
    `second_rows`."""
    merged = kernels.array_module(first).empty((first.shape[0] + second.shape[0], first.shape[1]), first.dtype)
    merged[first_rows], merged[second_rows] = first, second
    return merged, lambda grad: (grad[first_rows], grad[second_rows])


@operation()
def split_rows(run: Pass, rows: Any, *, first_rows: Any, second_rows: Any) -> Any:
    """What `merge_rows` made one of, of the same integers."""

    def pullback(of_first, of_second):
        grad = kernels.array_module(rows).zeros(rows.shape, rows.dtype)
        for places, part in ((first_rows, of_first), (second_rows, of_second)):
            if part is not None:
                grad[places] = part
        return (grad,)

    parts = (kernels.embedding(places, rows, backend=run.backend) for places in (first_rows, second_rows))
    return tuple(parts), pullback


def _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows):
    """Query, key and value of `entity_aware_attention`, (tokens, heads, 2 * head_dim) each."""
    query, key, value = split_heads(qkv, num_heads=num_heads)
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


def entity_aware_attention(
    run: Pass,
    qkv: Any,
    word_queries: Any,
    entity_queries: Any,
    *,
    num_heads: int,
    word_rows: Any,
    entity_rows: Any,
    **options: Any,
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
        num_heads: of all of them.
        word_rows, entity_rows: where words and entities stand among the tokens, integers (words,) and (entities,).
        options: cu_seqlens, attn_mask, compute_dtype and dropout as for `attention`.

    Returns:
        (tokens, hidden).
    """
    asked = with_seed(run, options) | {"num_heads": num_heads, "word_rows": word_rows, "entity_rows": entity_rows}
    results = _entity_aware_attention(run, qkv, word_queries, entity_queries, **asked)
    return note_probabilities(run, results)


@operation()
def _entity_aware_attention(
    run: Pass, qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, **options
):
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    (output, *probabilities), backward = attend_with_pullback(run, doubled, scale=size**-0.5, **options)

    def pullback(grad, *of_probabilities):
        xp = kernels.array_module(qkv)
        grad_output = None
        if grad is not None:
            grad_output = xp.zeros(output.shape, grad.dtype)
            grad_output[:, :, :size] = grad.reshape(-1, num_heads, size)
        query, key, value, *_ = backward(grad_output, *of_probabilities)
        grad_qkv = xp.zeros(qkv.shape, qkv.dtype)
        grad_query, grad_key, grad_value = split_heads(grad_qkv, num_heads=num_heads)
        grad_query[word_rows] = query[word_rows, :, :size]
        grad_key[word_rows], grad_key[entity_rows] = key[word_rows, :, :size], key[entity_rows, :, size:]
        grad_value[...] = value[:, :, :size]
        by_kind = query[entity_rows].reshape(-1, num_heads, 2, size).transpose(0, 2, 1, 3)
        words = query[word_rows, :, size:].reshape(word_queries.shape)
        return grad_qkv, words, by_kind.reshape(entity_queries.shape)

    return with_joined_heads(output[:, :, :size], *probabilities), pullback


@_entity_aware_attention.inference
def _entity_aware_forward(run, qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, **options):
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    results = attend(run, doubled, scale=size**-0.5, **options)
    output, *probabilities = results if type(results) is tuple else (results,)
    return with_joined_heads(output[:, :, :size], *probabilities)
