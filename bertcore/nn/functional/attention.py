"""Attention within packed sequences, and what stands around it, each with its gradient rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bertcore import kernels
from bertcore.kernels import RelativePositions
from bertcore.nn.functional.rows import column_sums, sequence_spans, widened
from bertcore.nn.operation import operation

_TERMS = ("position_key", "position_query", "query_for_position", "position_bias", "segment_scores")


def attention(query: Any, key: Any, value: Any, *, relative: RelativePositions | None = None, **options: Any) -> Any:
    """Scaled dot-product attention within each packed sequence; see `kernels.attention`.

    Dropout of the probabilities, once there is training, is an option here, its seed from the layer's context; in
    inference it is the identity.

    Args:
        query, key, value: (tokens, heads, head_dim) each.
        relative: terms of relative position and of segments, whose floating arrays have gradients, too.
        options: cu_seqlens, cu_seqlens_k, attn_mask, is_causal, window and scale as there; and
            attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest of the
                keys), or None.
            components: a list to which a tuple of scaled scores is appended, like the probabilities each: content to
                content, content to position, position to content (None for a table that is None); or None.
            compute_dtype: as there; not while a tape records.

    Returns:
        (tokens, heads, head_dim).
    """
    return _attention(query, key, value, *_terms(relative), relative=relative, **options)


def self_attention(
    *projected: Any,
    num_heads: int,
    num_key_value_heads: int | None = None,
    relative: RelativePositions | None = None,
    **options: Any,
) -> Any:
    """`attention` by query, key and value that stand side by side.

    Args:
        projected: query, key and value of all heads one after the other, (tokens, all their widths), in one array or
            in several.
        num_heads: of the query.
        num_key_value_heads: of key and value; num_heads by default.
        relative, options: as for `attention`.

    Returns:
        (tokens, heads * head_dim).
    """
    heads = num_heads, num_key_value_heads or num_heads
    return _self_attention(*projected, *_terms(relative), heads=heads, relative=relative, **options)


def split_heads(*projected: Any, num_heads: int, num_key_value_heads: int | None = None) -> list[Any]:
    """Query, key and value as views (tokens, heads, head_dim) of arrays in which they stand as in `self_attention`."""
    return _split(projected, num_heads, num_key_value_heads or num_heads)


def _split(projected, num_heads, num_key_value_heads):
    counts = num_heads, num_key_value_heads, num_key_value_heads
    size = sum(array.shape[1] for array in projected) // sum(counts)
    views: list[Any] = []
    for array in projected:
        tokens, width = array.shape
        heads, first = array.reshape(tokens, width // size, size), 0
        while first < width // size:
            count = counts[len(views)]
            views.append(heads[:, first : first + count])
            first += count
    return views


def _terms(relative: RelativePositions | None) -> tuple[Any, ...]:
    """The arrays of `relative` that have gradients, for an operation to take."""
    return () if relative is None else tuple(getattr(relative, name) for name in _TERMS)


def _with_terms(relative, terms):
    return None if relative is None else replace(relative, **dict(zip(_TERMS, terms, strict=True)))


def _attend(heads, attentions=None, components=None, **options):
    """kernels.attention; probabilities and components are appended to the lists, if there are any."""
    if attentions is not None:
        options["return_probs"] = True
    if components is not None:
        options["return_components"] = True
    results = kernels.attention(*heads, **options)
    if components is not None:
        *results, parts = results
        components.append(parts)
    if attentions is not None:
        *results, probabilities = results
        attentions.append(probabilities)
    return results[0] if type(results) is list and len(results) == 1 else results


def _attend_with_pullback(
    heads, attentions=None, components=None, compute_dtype=None, **options
) -> tuple[Any, Callable[[Any], Any]]:
    """The output, and what turns its gradient into those of heads and relative terms."""
    assert compute_dtype is None, "gradients need the arrays' own precision"
    output, lse = _attend(heads, attentions, components, return_lse=True, **options)
    return output, lambda grad: kernels.attention_backward(grad, *heads, output, lse, **options)


def _joined(output):
    return output.reshape(output.shape[0], output.shape[1] * output.shape[2])


def _turned_heads(joined, heads, head_dim):
    """The first heads of an array in which heads stand side by side, as a view (tokens, heads, head_dim)."""
    return joined.reshape(joined.shape[0], joined.shape[1] // head_dim, head_dim)[:, :heads]


@operation(has_step=True)
def rotary(joined: Any, *, heads: int, head_dim: int, **angles: Any) -> Any:
    """The first `heads` of (tokens, all heads * head_dim) turned by their position, the others as they are.

    In inference that happens in the memory of `joined`. `angles` are cos, sin, cu_seqlens or positions, and interleaved
    as `kernels.rotary` has them.
    """

    def pullback(grad):
        grad = grad.copy()
        kernels.rotary_backward(_turned_heads(grad, heads, head_dim), **angles, inplace=True)
        return (grad,)

    output = joined.copy()
    kernels.rotary(_turned_heads(output, heads, head_dim), **angles, inplace=True)
    return output, pullback


@rotary.inference
def _rotary(joined, *, heads, head_dim, **angles):
    kernels.rotary(_turned_heads(joined, heads, head_dim), **angles, inplace=True)
    return joined


@operation(has_step=True)
def _attention(query, key, value, *terms, relative, **options):
    relative = _with_terms(relative, terms)
    output, backward = _attend_with_pullback((query, key, value), relative=relative, **options)

    def pullback(grad):
        grads = backward(grad)
        return *grads[:3], *_terms(grads.relative)

    return output, pullback


@_attention.inference
def _attention_forward(query, key, value, *terms, **options):
    return _attend((query, key, value), **options)


@operation(has_step=True)
def _self_attention(*arrays, heads, relative, **options):
    count = len(arrays) - (0 if relative is None else len(_TERMS))
    projected, relative = arrays[:count], _with_terms(relative, arrays[count:])
    query, key, value = _split(projected, *heads)
    output, backward = _attend_with_pullback((query, key, value), relative=relative, **options)

    def pullback(grad):
        grads = backward(grad.reshape(output.shape))
        joined = tuple(array.copy() for array in projected)  # in their memory and dtype; every entry is overwritten
        for target, part in zip(_split(joined, *heads), grads[:3], strict=True):
            target[...] = part
        return *joined, *_terms(grads.relative)

    return _joined(output), pullback


@_self_attention.inference
def _self_attention_forward(*arrays, heads, relative, **options):
    projected = arrays if relative is None else arrays[: -len(_TERMS)]
    return _joined(_attend(_split(projected, *heads), relative=relative, **options))


def _blind_rows(is_real: Any, cu_seqlens: Any) -> list[tuple[slice, Any]]:
    """Of each sequence with tokens that see nothing: its tokens, and which of them those are."""
    spans = [slice(first, end) for first, end in sequence_spans(cu_seqlens)]
    return [(span, ~is_real[span]) for span in spans if not is_real[span].all()]


@operation()
def attend_to_all_alike(attended: Any, qkv: Any, *, num_heads: int, is_real: Any, cu_seqlens: Any) -> Any:
    """`attended`, (tokens, hidden), but for tokens that are not `is_real`, (tokens,) booleans: these have the mean of
    all values of their sequence, as in transformers' DeBERTa, where all their scores are one number.

    `qkv` and `num_heads` are those of `self_attention`, in one array.
    """
    heads, blind = (num_heads, num_heads), _blind_rows(is_real, cu_seqlens)
    output = attended.copy()
    value = _split((qkv,), *heads)[2]
    for span, rows in blind:
        output[span][rows] = value[span].mean(axis=0).reshape(-1)

    def pullback(grad):
        grad_qkv = kernels.array_module(grad).zeros(qkv.shape, grad.dtype)
        grad_attended, grad_value = grad.copy(), _split((grad_qkv,), *heads)[2]
        for span, rows in blind:
            grad_value[span] += grad[span][rows].sum(axis=0).reshape(num_heads, -1) / len(rows)
            grad_attended[span][rows] = 0
        return grad_attended, grad_qkv

    return output, pullback


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


@operation()
def entity_aware_attention(
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
        options: cu_seqlens, attn_mask, attentions and compute_dtype as for `attention`.

    Returns:
        (tokens, hidden).
    """
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    output, backward = _attend_with_pullback(doubled, scale=size**-0.5, **options)

    def pullback(grad):
        xp = kernels.array_module(grad)
        grad_output = xp.zeros(output.shape, grad.dtype)
        grad_output[:, :, :size] = grad.reshape(-1, num_heads, size)
        query, key, value, *_ = backward(grad_output)
        grad_qkv = xp.zeros(qkv.shape, qkv.dtype)
        grad_query, grad_key, grad_value = split_heads(grad_qkv, num_heads=num_heads)
        grad_query[word_rows] = query[word_rows, :, :size]
        grad_key[word_rows], grad_key[entity_rows] = key[word_rows, :, :size], key[entity_rows, :, size:]
        grad_value[...] = value[:, :, :size]
        by_kind = query[entity_rows].reshape(-1, num_heads, 2, size).transpose(0, 2, 1, 3)
        words = query[word_rows, :, size:].reshape(word_queries.shape)
        return grad_qkv, words, by_kind.reshape(entity_queries.shape)

    return _joined(output[:, :, :size]), pullback


@entity_aware_attention.inference
def _entity_aware_attention(qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, **options):
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    return _joined(_attend(doubled, scale=size**-0.5, **options)[:, :, :size])


@operation()
def segment_scores(queries: Any, bias: Any, table: Any) -> Any:
    """(queries + bias) times the two vectors of each head: (tokens, heads, head_dim), (heads, head_dim) and (2, heads,
    head_dim) -> (tokens, heads, 2) (Yang et al. 2019, arXiv:1906.08237, section 2.5)."""
    wide, wide_bias = widened(queries), widened(bias)
    scores = [(wide * row).sum(axis=-1) + (wide_bias * row).sum(axis=-1) for row in widened(table)]
    xp = kernels.array_module(queries)

    def pullback(grad):
        parts = [grad[..., column, None] for column in range(2)]
        grad_queries = sum(part * row for part, row in zip(parts, table, strict=True))
        grad_table = [column_sums(part * queries) + column_sums(part) * bias for part in parts]
        return grad_queries, column_sums(grad_queries), xp.stack(grad_table)

    return xp.stack(scores, axis=-1).astype(queries.dtype, copy=False), pullback
