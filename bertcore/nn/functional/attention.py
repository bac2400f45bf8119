"""Attention within packed sequences, and what stands around it, each with its gradient rule."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bertcore import kernels
from bertcore.kernels import RelativePositions
from bertcore.nn.dropout import of_attention
from bertcore.nn.operation import operation

_TERMS = ("position_key", "position_query", "query_for_position", "position_bias", "segment_scores")


def attention(query: Any, key: Any, value: Any, *, relative: RelativePositions | None = None, **options: Any) -> Any:
    """Scaled dot-product attention within each packed sequence; see `kernels.attention`.

    Args:
        query, key, value: (tokens, heads, head_dim) each.
        relative: terms of relative position and of segments, whose floating arrays have gradients, too.
        options: cu_seqlens, cu_seqlens_k, attn_mask, is_causal, window and scale as there; and
            attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest of the
                keys), or None.
            components: a list to which a tuple of scaled scores is appended, like the probabilities each: content to
                content, content to position, position to content (None for a table that is None); or None.
            compute_dtype: as there; not while a tape records.
            dropout: the rate at which probabilities are dropped in training (nn/dropout.py says where that is).

    Returns:
        (tokens, heads, head_dim).
    """
    return _attention(query, key, value, *_terms(relative), relative=relative, **_with_seed(options))


def self_attention(
    *projected: Any,
    num_heads: int,
    num_key_value_heads: int | None = None,
    relative: RelativePositions | None = None,
    **options: Any,
) -> Any:
    """`attention` of query, key and value that stand side by side in one array or several.

    Args:
        projected: query, key and value of all heads one after the other, (tokens, all their widths).
        num_heads: of the query.
        num_key_value_heads: of key and value; num_heads by default.
        relative, options: as for `attention`.

    Returns:
        (tokens, heads * head_dim).
    """
    heads = num_heads, num_key_value_heads or num_heads
    return _self_attention(*projected, *_terms(relative), heads=heads, relative=relative, **_with_seed(options))


def _with_seed(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with dropout as the kernels take it."""
    rate = options.pop("dropout", 0.0)
    return options | of_attention(rate) if rate else options


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


def attend(heads: Sequence[Any], attentions: list | None = None, components: list | None = None, **options: Any) -> Any:
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


def attend_with_pullback(
    heads: Sequence[Any],
    attentions: list | None = None,
    components: list | None = None,
    compute_dtype: str | None = None,
    **options: Any,
) -> tuple[Any, Callable[[Any], Any]]:
    """The output, and what turns its gradient into those of heads and relative terms."""
    assert compute_dtype is None, "gradients need the arrays' own precision"
    output, lse = attend(heads, attentions, components, return_lse=True, **options)
    return output, lambda grad: kernels.attention_backward(grad, *heads, output, lse, **options)


def join_heads(output: Any) -> Any:
    """(tokens, heads, head_dim) -> (tokens, heads * head_dim)."""
    return output.reshape(output.shape[0], output.shape[1] * output.shape[2])


def _turned_heads(joined, heads, head_dim):
    """The first heads of an array in which heads stand side by side, as a view (tokens, heads, head_dim)."""
    return joined.reshape(joined.shape[0], joined.shape[1] // head_dim, head_dim)[:, :heads]


@operation(has_step=True)
def rotary(joined: Any, *, heads: int, head_dim: int, **angles: Any) -> Any:
    """The first `heads` of (tokens, all heads * head_dim) turned by their position, the others as they are.

    Without a tape `joined` is overwritten. `angles` are cos, sin, cu_seqlens or positions, and interleaved, as for
    `kernels.rotary`.
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
    output, backward = attend_with_pullback((query, key, value), relative=relative, **options)

    def pullback(grad):
        grads = backward(grad)
        return *grads[:3], *_terms(grads.relative)

    return output, pullback


@_attention.inference
def _attention_forward(query, key, value, *terms, **options):
    return attend((query, key, value), **options)


@operation(has_step=True)
def _self_attention(*arrays, heads, relative, **options):
    count = len(arrays) - (0 if relative is None else len(_TERMS))
    projected, relative = arrays[:count], _with_terms(relative, arrays[count:])
    query, key, value = _split(projected, *heads)
    output, backward = attend_with_pullback((query, key, value), relative=relative, **options)

    def pullback(grad):
        grads = backward(grad.reshape(output.shape))
        joined = tuple(array.copy() for array in projected)  # in their memory and dtype; every entry is overwritten
        for target, part in zip(_split(joined, *heads), grads[:3], strict=True):
            target[...] = part
        return *joined, *_terms(grads.relative)

    return join_heads(output), pullback


@_self_attention.inference
def _self_attention_forward(*arrays, heads, relative, **options):
    projected = arrays if relative is None else arrays[: -len(_TERMS)]
    return join_heads(attend(_split(projected, *heads), relative=relative, **options))
