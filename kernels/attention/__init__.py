"""Scaled dot-product attention, dense or over packed sequences, with relative positions; forward and backward.

Backends implement these functions, with `scoring` as described in arguments.py:

    attention(query, key, value, scoring, return_probs, return_components, compute_dtype)
        -> (output, lse, probabilities or None, components or None)

    attention_backward(grad_output, query, key, value, output, lse, scoring, out)
        -> (grad_query, grad_key, grad_value, grad_bias or None, RelativePositions of gradients or None)

All arrays of tokens are (batch, heads, length, head_dim) with contiguous rows; packed arrays are views of that form
with a batch of 1. grad_bias may have size 1 along axes on which bias has a stride of 0. `out` is None, or the arrays to
write the first three gradients to.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from .. import checks, dispatch
from ..arguments import AnyArray, Argument, Flag, Floats, Probability, Seed, WideFloats
from ..arrays import Array, ArrayT, NativeArray, Operand
from ..operation import BackwardCall, Call, Function, Operation
from .arguments import UNLIMITED, AttentionArguments, check_arguments, check_window, four_axes, scoring_of, terms_of
from .positions import TERMS, RelativePositions, alibi_positions, bucketed_distances

__all__ = [
    "AttentionArguments", "AttentionGradients", "AttentionSaved", "RelativePositions", "alibi_positions", "attention",
    "attention_backward", "bucketed_distances",
]  # fmt: skip

_TARGETS = ("out[0]", "out[1]", "out[2]")


class AttentionGradients(NamedTuple):
    """The gradients of `attention`, each with its array's shape and dtype; None if the array is None."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    relative: RelativePositions | None


class AttentionSaved(NamedTuple):
    """Kept for the backward: the arguments, the output, and lse as `return_lse` returns it.

    Offsets, rows and segments are int32, `window` is a pair of integers, `scale` a number; cu_seqlens_k and
    segment_ids_k are those of the queries if they were not given. The fields from distance_rows on are those of
    `RelativePositions`, None without it.
    """

    query: Array
    key: Array
    value: Array
    output: Array
    lse: Array
    cu_seqlens: Array | None = None
    cu_seqlens_k: Array | None = None
    attn_mask: Array | None = None
    bias: Array | None = None
    is_causal: bool = False
    window: tuple[int, int] = (UNLIMITED, UNLIMITED)
    scale: float | None = None
    dropout_p: float = 0.0
    dropout_seed: int | Array = 0
    distance_rows: Array | None = None
    position_key: Array | None = None
    position_query: Array | None = None
    query_for_position: Array | None = None
    position_bias: Array | None = None
    segment_ids: Array | None = None
    segment_ids_k: Array | None = None
    segment_scores: Array | None = None
    longest: int | None = None


def _forward(function: Function, backend: str, save: bool, *values: Any) -> Any:
    given = AttentionArguments(*values)
    is_packed, asked = given.cu_seqlens is not None, (given.return_probs, given.return_components)
    query, key, value = (four_axes(array, is_packed) for array in values[:3])
    output, lse, probs, components = function(query, key, value, scoring_of(given), *asked, given.compute_dtype)
    if is_packed:
        output, lse = _packed(output), lse[0]
    result = output
    if given.return_lse or given.return_probs or given.return_components:
        parts = (lse, probs, components)
        asked = (given.return_lse, *asked)
        result = output, *[part for part, is_asked in zip(parts, asked, strict=True) if is_asked]
    if not save:
        return result
    return result, AttentionSaved(*values[:3], output, lse, *values[3:12], *values[16:])


def _backward(
    function: Function, backend: str, grad_output: NativeArray, saved: AttentionSaved, *out: NativeArray
) -> tuple[Any, ...]:
    """Return the gradients of query, key, value, bias and the TERMS of `RelativePositions`."""
    is_packed, bias = saved.cu_seqlens is not None, saved.bias
    if bias is not None and 0 in bias.strides:  # to the backends a stride of 0 means an axis to sum the gradient over
        saved = saved._replace(bias=bias.copy(order="C"))
    arrays = (grad_output, *saved[:4])
    targets = tuple(array.transpose(1, 0, 2)[None] if is_packed else array for array in out) or None
    lse = saved.lse[None] if is_packed else saved.lse
    given = *[four_axes(array, is_packed) for array in arrays], lse, scoring_of(saved), targets
    *grads, grad_bias, grad_relative = function(*given)
    if is_packed:
        grads = [_packed(grad) for grad in grads]
        per_query = {name: getattr(grad_relative, name, None) for name in ("query_for_position", "segment_scores")}
        packed = {name: _packed(grad) for name, grad in per_query.items() if grad is not None}
        grad_relative = replace(grad_relative, **packed) if packed else grad_relative
    if bias is not None:
        grad_bias = _sum_to_shape(grad_bias, bias.shape)
    return *grads, grad_bias, *[getattr(grad_relative, name, None) for name in TERMS]


def _kept_shapes(given: Any) -> dict[str, Any]:
    *rows, _ = given.query.shape
    return {"lse": (*(rows if given.cu_seqlens is None else reversed(rows)), 2)}


_KEPT = tuple(name for name in AttentionArguments._fields if name in AttentionSaved._fields)


class _Window(Argument):
    """The number of keys before and after its position that a query sees: a pair, one integer for both, or None."""

    schema = "SymInt[]"

    def traced(self, name: str, value: object) -> list[int]:
        return list(check_window(value))

    def check(self, name: str, value: object, call: Call) -> tuple[int, int]:
        return check_window(value)


ATTENTION = Operation(
    __package__,
    "attention",
    {
        "query": Floats(""),
        "key": Floats(""),
        "value": Floats(""),
        "cu_seqlens": AnyArray("", optional=True),
        "cu_seqlens_k": AnyArray("", optional=True),
        "attn_mask": AnyArray("", optional=True),
        "bias": Floats("", optional=True),
        "is_causal": Flag(),
        "window": _Window(),
        "scale": Argument("float?"),
        "dropout_p": Probability(),
        "dropout_seed": Seed(),
        "compute_dtype": Argument(),
        "return_lse": Flag(schema=""),
        "return_probs": Flag(schema=""),
        "return_components": Flag(schema=""),
        "distance_rows": AnyArray("", optional=True),
        "position_key": Floats("", optional=True),
        "position_query": Floats("", optional=True),
        "query_for_position": Floats("", optional=True),
        "position_bias": Floats("", optional=True),
        "segment_ids": AnyArray("", optional=True),
        "segment_ids_k": AnyArray("", optional=True),
        "segment_scores": Floats("", optional=True),
        "longest": Argument("SymInt?"),
    },
    saves=AttentionSaved,
    kept={"output": Floats(""), "lse": WideFloats("")},
    kept_shapes=_kept_shapes,
    gradients=("query", "key", "value", "bias", *TERMS),
    output="query",
    forward=_forward,
    backward=_backward,
)


def attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    attn_mask: Array | None = None,
    bias: ArrayT | None = None,
    is_causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    relative: RelativePositions | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Array = 0,
    compute_dtype: str | None = None,
    return_lse: bool = False,
    return_probs: bool = False,
    return_components: bool = False,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute softmax(scale * query @ key.T + relative terms + bias + mask) @ value for each sequence and head.

    A query that sees no key has the output zero; it and masked keys must be finite. Vaswani et al., arXiv:1706.03762.

    Args:
        query: dense, (batch, heads, length, head_dim), or packed, (tokens, heads, head_dim). float32 or float64 on
            Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on NumPy. On CUDA head_dim is at most 256,
            with relative tables or segments 128.
        key, value: as the query, possibly of another length. Their number of heads may divide the query's (grouped
            queries, Ainslie et al. 2023, arXiv:2305.13245): query head h has their head h * key heads // heads. As in
            PyTorch's flash attention, sums are divided last: values above the dtype's limit / keys may overflow.
        cu_seqlens: for packed arrays the offsets of the sequences, (sequences + 1,) integers from 0 to the number of
            tokens: sequence s begins at cu_seqlens[s]. On a GPU their values are not checked, and nothing is written
            for tokens outside of all sequences.
        cu_seqlens_k: the same for key and value; by default cu_seqlens.
        attn_mask: boolean, True where a query may see a key, or of the query's dtype and added to the scores. It
            broadcasts to (sequences, heads, longest query, longest key); values beyond a sequence are not read. With
            cu_seqlens on a GPU, it is not checked that it covers the longest sequence: a shorter mask is read out of
            bounds.
        bias: added to the scores; of the query's dtype, broadcasts like attn_mask, and has a gradient.
        is_causal: query i sees the keys j <= i of its sequence, as in PyTorch. With a memory use window=(None, 0).
        window: (left, right), or one integer for both: query i, at key position p = i + keys - queries, sees only keys
            p - left to p + right; None means no limit. Costs O(length * window). Beltagy et al. 2020, arXiv:2004.05150.
        relative: terms of relative position and of segments.
        scale: 1 / sqrt(head_dim) by default.
        dropout_p: the probability that a softmax weight is set to 0; the others are divided by 1 - dropout_p. The
            choice is a function of dropout_seed, the query's index among all tokens, its head and the key's index in
            its sequence (see `dropout`). Not with a compute_dtype.
        dropout_seed: as in `dropout`: a 64-bit integer, or on CUDA also an array of one.
        compute_dtype: "bfloat16" rounds the float32 factors of products to bfloat16; sums and softmax stay float32.
            Numba does so on CPUs that multiply bfloat16 faster than float32, with exponentials that are 2^-18 off
            before rounding (2^-9), and computes in float32 on others. Not on CUDA. By default the arrays' dtype.
        return_lse: also return the log-sum-exp of the scores.
        return_probs: also return the probabilities, before any dropout.
        return_components: also return the three scaled products whose sum is the scores. Not on CUDA.
        save: also return the state that `attention_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        output, of the query's shape and dtype, or a tuple of it and the requested results, in this order: lse (batch,
        heads, length, 2), packed (heads, tokens, 2), in float32 (float64 for float64): the highest score, and the
        logarithm of the sum of exp(score - highest): one number would lose digits. (-inf, 0) where a query sees no key.
        Probabilities (sequences, heads, longest query, longest key) in the query's dtype, zeros beyond a sequence. The
        tuple (content to content, content to position, position to content), each like the probabilities, None where
        the table is None. With `save`, a tuple of that and an `AttentionSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, offset or number.
        BackendUnavailable: if the backend cannot run here.
    """
    call = ATTENTION.open(
        backend, query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, window, scale, dropout_p,
        dropout_seed, compute_dtype, return_lse, return_probs, return_components, *terms_of(relative),
    )  # fmt: skip
    with dispatch.on_device_of(call.given[0]):
        save = checks.boolean("save", save)
        call.given = check_arguments(call.backend, AttentionArguments(*call.given), save)
    return call.run(save)


def attention_backward(
    grad_output: ArrayT,
    saved: AttentionSaved,
    *,
    out: tuple[ArrayT, ArrayT, ArrayT] | None = None,
    backend: str | None = None,
) -> AttentionGradients:
    """Return the gradients of `attention`, recomputing probabilities from lse (Dao et al. 2022, arXiv:2205.14135).

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        saved: the state that `attention` returned with `save=True`.
        out: arrays for the gradients of query, key and value, of their shapes and dtype, with contiguous rows and
            writable, not overlapping any other array of the call. They may be views of one array. By default new ones.
        backend: as for `attention`; errors are the same.

    Returns:
        A named tuple (query, key, value, bias, relative), each with the shape and dtype of its array, None if that is
        None; relative is a `RelativePositions` of the gradients of its floating arrays. Without query_for_position the
        query's gradient holds both of its parts. attn_mask has no gradient.
    """
    if out is not None and (not isinstance(out, tuple) or len(out) != 3 or any(array is None for array in out)):
        raise TypeError(f"out is {out!r:.100}, expected a tuple of three arrays")
    call = ATTENTION.open_backward(backend, grad_output, saved, **dict(zip(_TARGETS, out or (), strict=False)))
    with dispatch.on_device_of(call.grad_output):
        call.saved = _checked(call.backend, call.saved)
    if out is not None:
        _check_targets(call)
    query, key, value, bias, *terms = call.run()
    relative = None
    if saved.distance_rows is not None:
        relative = RelativePositions(None, **dict(zip(TERMS, terms, strict=True)))
    return AttentionGradients(query, key, value, bias, relative)


def _checked(backend: str, saved: AttentionSaved) -> AttentionSaved:
    """Check the saved state as `attention` checks its arguments."""
    query, is_packed = saved.query, saved.cu_seqlens is not None
    given = AttentionArguments(**{name: getattr(saved, name) for name in _KEPT})
    given = check_arguments(backend, given, save=True)
    rows = (query.shape[1], query.shape[0]) if is_packed else query.shape[:-1]
    checks.shape(query.shape, **{"saved.output": saved.output})
    checks.shape((*rows, 2), **{"saved.lse": saved.lse})
    return saved._replace(**{name: getattr(given, name) for name in _KEPT})


def _packed(array: Operand) -> Operand:
    """(1, heads, tokens, head_dim) as (tokens, heads, head_dim)."""
    return array[0].transpose(1, 0, 2)


def _check_targets(call: BackwardCall) -> None:
    """Check the arrays for the gradients of query, key and value: their shapes, and that they overlap no others."""
    named = {"grad_output": call.grad_output, **call.saved._asdict(), **call.options}
    for name, array in zip(_TARGETS, call.saved[:3], strict=True):
        target = named[name]
        checks.shape(array.shape, **{name: target})
        if target.dtype != array.dtype:
            raise TypeError(f"{name} has dtype {target.dtype}, expected {array.dtype}")
        checks.writable_rows(name, target)
    for name in _TARGETS:
        checks.overlaps_none(name, named)


def _sum_to_shape(grad: NativeArray, shape: tuple[int, ...]) -> NativeArray:
    """grad, (sequences, heads, longest query, longest key), summed over the axes along which `shape` was broadcast.

    A backend may have done so already: then grad has size 1 there.
    """
    padded = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(axis for axis in range(4) if padded[axis] == 1 and grad.shape[axis] != 1)
    return (grad.sum(axis=axes, keepdims=True) if axes else grad).reshape(shape)
