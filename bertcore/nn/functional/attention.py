"""Attention within packed sequences, and its helpers, each with its gradient rule."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bertcore import kernels
from bertcore.kernels import RelativePositions
from bertcore.kernels.attention import ATTENTION, AttentionArguments
from bertcore.kernels.attention.arguments import check_window
from bertcore.kernels.attention.positions import TERMS
from bertcore.kernels.rotary import ROTARY
from bertcore.nn.functional.rows import reshape
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


def attention(
    run: Pass, query: Tensor, key: Tensor, value: Tensor, *, relative: RelativePositions | None = None, **options: Any
) -> Tensor:
    """Return scaled dot-product attention within each packed sequence; see `kernels.attention`.

    Args:
        query, key, value: (tokens, heads, head_dim) each.
        relative: terms of relative position and of segments; their floating-point arrays also have gradients.
        options: cu_seqlens, cu_seqlens_k, attn_mask, is_causal, window and scale as there; and
            components: None, or a list to which a tuple of scaled scores is appended, each shaped like the
            probabilities: content to content, content to position, position to content (None without a table).
            compute_dtype: as there; not while a tape records.
            dropout: the dropout rate of probabilities, if the pass uses dropout.

    Returns:
        (tokens, heads, head_dim). If the pass collects attentions, the probabilities, (sequences, heads, longest,
        longest of the keys), are appended to them; they have a gradient.
    """
    shapes = [value_of(each).shape for each in (query, key, value)]
    joined = (
        reshape(run, each, shape=(tokens, heads * size))
        for each, (tokens, heads, size) in zip((query, key, value), shapes, strict=True)
    )
    options |= {"num_heads": shapes[0][1], "num_key_value_heads": shapes[1][1], "relative": relative}
    return reshape(run, self_attention(run, *joined, **options), shape=shapes[0])


def self_attention(
    run: Pass,
    *projected: Tensor,
    num_heads: int,
    num_key_value_heads: int | None = None,
    relative: RelativePositions | None = None,
    **options: Any,
) -> Tensor:
    """Return `attention` of query, key and value that are concatenated in one array or several.

    The columns of `projected`, (tokens, ...) each, are query, key and value of all heads, in turn. Key and value may
    have fewer heads, num_key_value_heads. Returns (tokens, heads * head_dim).
    """
    asked = with_seed(run, options) | {"heads": (num_heads, num_key_value_heads or num_heads), "relative": relative}
    return note_probabilities(run, _self_attention(run, *projected, *_terms(relative), **asked))


def note_probabilities(run: Pass, results: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the output of attention; append the probabilities, its second result, if the pass collects them."""
    if run.trace.attentions is None:
        return results
    output, probabilities = results
    run.trace.attentions.append(probabilities)
    return output


def with_seed(run: Pass, options: dict[str, Any]) -> dict[str, Any]:
    """Return attention's `options` as the kernels take them: with dropout if the pass uses it, and `return_probs`."""
    rate = options.pop("dropout", 0.0)
    if rate and run.seeds:
        options |= {"dropout_p": rate, "dropout_seed": run.seeds.draw()}
    if run.trace.attentions is not None:
        options["return_probs"] = True
    return options


def split_heads(qkv: Tensor, *, num_heads: int) -> list[Any]:
    """Return query, key and value as views (tokens, heads, head_dim) of the array that concatenates them."""
    return _split((qkv,), num_heads, num_heads)


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
    """Return the arrays of `relative` that have gradients."""
    return () if relative is None else tuple(getattr(relative, name) for name in TERMS)


def _with_terms(relative, terms):
    return None if relative is None else replace(relative, **dict(zip(TERMS, terms, strict=True)))


def attend(run: Pass, heads: Sequence[Any], components: list | None = None,
           relative: RelativePositions | None = None, **options: Any) -> Any:  # fmt: skip
    """Return the result of `kernels.attention`; components are appended to the list, unless it is None."""
    if components is None and relative is None and options.get("attn_mask") is None:
        save, window = options.pop("save", False), check_window(options.pop("window", None))
        given = AttentionArguments(*heads, window=window, **options)  # nothing to check without terms and masks
        return ATTENTION.forward(run.backend, *given, save=save)
    has_parts, save = components is not None, options.get("save", False)
    found = kernels.attention(
        *heads, relative=relative, return_components=has_parts, backend=run.backend, **options
    )  # fmt: skip
    results, saved = found if save else (found, None)
    if has_parts:
        *others, parts = results
        components.append(parts)
        results = others[0] if len(others) == 1 else tuple(others)
    return (results, saved) if save else results


def attend_with_pullback(
    run: Pass, heads: Sequence[Any], *, return_probs: bool = False, compute_dtype: str | None = None, **options: Any
) -> tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]]]:
    """Return (the output, and the probabilities if requested), and their pullback.

    The pullback returns the gradients of query, key, value, bias and the relative-position terms in a tuple.
    """
    assert compute_dtype is None, "gradients need the arrays' own precision"
    results, saved = attend(run, heads, return_probs=return_probs, save=True, **options)
    results = results if type(results) is tuple else (results,)

    def backward(grad, grad_probabilities=None, out=()):
        """Return the gradients; those of heads are written to `out` if only the output has a gradient."""
        parts = []
        if grad is not None:
            parts.append(ATTENTION.backward(run.backend, grad, saved, *out))
        if grad_probabilities is not None:
            parts.append(_probabilities_backward(run, grad_probabilities, results[1], saved))
        return parts[0] if len(parts) == 1 else _sums(*parts)

    return results, backward


def _probabilities_backward(run, grad, probabilities, saved):
    """Return the gradients of queries, keys and relative terms from the gradient of the probabilities.

    With values that are 1 for one key and 0 for all others, attention returns the key's probability. So this is the
    backward of attention, for as many keys at a time as a value has elements.
    """
    query, key, offsets = saved.query, saved.key, saved.cu_seqlens
    of_query = _places(query, offsets)
    of_key = _places(key, offsets if saved.cu_seqlens_k is None else saved.cu_seqlens_k)
    xp, size, total = kernels.array_module(query), key.shape[2], None
    for first in range(0, max(probabilities.shape[3], 1), max(size, 1)):
        value = xp.zeros(key.shape, key.dtype)
        column = of_key[1] - first
        rows = xp.flatnonzero((column >= 0) & (column < size))
        value[rows, :, column[rows]] = 1
        arrays = []
        for array in (grad, probabilities):
            chosen = array[of_query[0], :, of_query[1], first : first + size]
            arrays.append(xp.zeros(query.shape, query.dtype))
            arrays[-1][:, :, : chosen.shape[2]] = chosen
        kept = saved._replace(value=value, output=arrays[1], dropout_p=0.0)
        grad_query, grad_key, _, *others = ATTENTION.backward(run.backend, arrays[0], kept)
        part = grad_query, grad_key, xp.zeros(key.shape, key.dtype), *others
        total = part if total is None else _sums(total, part)
    return total


def _places(array, cu_seqlens):
    """Return each token's sequence and its index within it, for an array (tokens, ...)."""
    xp = kernels.array_module(array)
    tokens = xp.arange(len(array))
    sequence = xp.searchsorted(cu_seqlens, tokens, side="right") - 1
    return sequence, tokens - cu_seqlens[sequence]


def _sums(left, right):
    """Return the sums of two tuples of gradients; None where an array is None."""
    return tuple([None if one is None else one + other for one, other in zip(left, right, strict=True)])


def join_heads(output: Tensor) -> Tensor:
    """Reshape (tokens, heads, head_dim) to (tokens, heads * head_dim)."""
    return output.reshape(output.shape[0], output.shape[1] * output.shape[2])


def _rotated_heads(joined, heads, head_dim):
    """Return the first heads of concatenated heads as a view (tokens, heads, head_dim)."""
    return joined.reshape(joined.shape[0], joined.shape[1] // head_dim, head_dim)[:, :heads]


@operation(has_step=True)
def rotary(run: Pass, joined: Tensor, *, heads: int, head_dim: int, **angles: Any) -> Tensor:
    """Return (tokens, all heads * head_dim) with the first `heads` rotated by their position.

    Without a tape, `joined` is overwritten. `angles` are cos, sin, cu_seqlens or positions, and interleaved, as for
    `kernels.rotary`.
    """
    output = joined.copy()
    options = {"inplace": True, "save": True, "backend": run.backend}
    _, saved = kernels.rotary(_rotated_heads(output, heads, head_dim), **angles, **options)

    def pullback(grad):
        grad = grad.copy()
        ROTARY.backward(run.backend, _rotated_heads(grad, heads, head_dim), saved, True)
        return (grad,)

    return output, pullback


@rotary.inference
def _rotary(run, joined, *, heads, head_dim, **angles):
    kernels.rotary(_rotated_heads(joined, heads, head_dim), **angles, inplace=True, backend=run.backend)
    return joined


@operation(has_step=True)
def _self_attention(run: Pass, *arrays, heads, relative, **options):
    count = len(arrays) - (0 if relative is None else len(TERMS))
    projected, relative = arrays[:count], _with_terms(relative, arrays[count:])
    query, key, value = _split(projected, *heads)
    (output, *probabilities), backward = attend_with_pullback(run, (query, key, value), relative=relative, **options)

    def pullback(grad, *of_probabilities):
        xp = kernels.array_module(output)
        joined = tuple(xp.empty_like(array) for array in projected)  # every entry is written
        targets = tuple(_split(joined, *heads))
        # Written in place: with a copy, they took 1.1 to 1.2 times as long (1 thread).
        out = targets if all(part is None for part in of_probabilities) else ()
        found = backward(None if grad is None else grad.reshape(output.shape), *of_probabilities, out=out)
        if not out:
            for target, part in zip(targets, found[:3], strict=True):
                target[...] = part
        return *joined, *(found[4:] if relative is not None else ())

    return with_joined_heads(output, *probabilities), pullback


@_self_attention.inference
def _self_attention_forward(run, *arrays, heads, relative, **options):
    projected = arrays if relative is None else arrays[: -len(TERMS)]
    results = attend(run, _split(projected, *heads), relative=relative, **options)
    return with_joined_heads(*results) if type(results) is tuple else join_heads(results)


def with_joined_heads(output: Tensor, *probabilities: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return the output with concatenated heads, or a tuple of it and the probabilities, if given."""
    return (join_heads(output), *probabilities) if probabilities else join_heads(output)
