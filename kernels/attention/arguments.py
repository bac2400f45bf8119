"""Checks of attention's arguments, and their conversion to the form that the backends expect."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..arrays import NativeArray, Operand
from .positions import OF_RELATIVE, RelativePositions

COMPUTE_DTYPES = (None, "bfloat16")
UNLIMITED = 2**30  # an unlimited side of a window: more than any length, yet sums of a few fit in int32
MOST_SEGMENT = 2**24 - 1  # the largest magnitude of a segment id: float32 holds all integers up to it


class Scoring(NamedTuple):
    """The terms of the scores of queries and keys, in the form that the backends expect.

    Masks and biases have the shape of the scores, with strides of 0 where they are broadcast; integers are int32; the
    arrays of tokens in `relative` have four axes like the query, those of segments two; `window` is a pair of ints.
    """

    cu_seqlens: NativeArray | None
    cu_seqlens_k: NativeArray | None
    attn_mask: NativeArray | None
    bias: NativeArray | None
    is_causal: bool
    window: tuple[int, int]
    relative: RelativePositions | None
    scale: float
    dropout_p: float = 0.0
    dropout_seed: int | NativeArray = 0


class AttentionArguments(NamedTuple):
    """The arguments of `attention` in the order of its record; the fields of `relative` are separate."""

    query: Operand
    key: Operand
    value: Operand
    cu_seqlens: NativeArray | None = None
    cu_seqlens_k: NativeArray | None = None
    attn_mask: Operand | None = None
    bias: Operand | None = None
    is_causal: bool = False
    window: tuple[int, int] = (UNLIMITED, UNLIMITED)
    scale: float | None = None
    dropout_p: float = 0.0
    dropout_seed: int | NativeArray = 0
    compute_dtype: str | None = None
    return_lse: bool = False
    return_probs: bool = False
    return_components: bool = False
    distance_rows: NativeArray | None = None
    position_key: Operand | None = None
    position_query: Operand | None = None
    query_for_position: Operand | None = None
    position_bias: Operand | None = None
    segment_ids: NativeArray | None = None
    segment_ids_k: NativeArray | None = None
    segment_scores: Operand | None = None
    longest: int | None = None


def terms_of(relative: RelativePositions | None) -> tuple[Any, ...]:
    """Return the fields of `relative` in their order, all None if it is None."""
    if relative is None:
        return (None,) * (len(OF_RELATIVE) + 1)
    if type(relative) is not RelativePositions:
        raise TypeError(f"relative is {type(relative).__qualname__}, expected RelativePositions")
    if relative.distance_rows is None:
        raise TypeError("distance_rows is None, expected a NumPy, CuPy or PyTorch array")
    return *[getattr(relative, name) for name in OF_RELATIVE], relative.longest


def _relative(given: Any) -> RelativePositions | None:
    """Return the terms of relative position among the arguments or the saved fields."""
    return None if given.distance_rows is None else RelativePositions(*given[-len(OF_RELATIVE) - 1 :])


def check_arguments(backend: str, given: AttentionArguments, save: bool) -> AttentionArguments:
    """Check that the arguments fit each other; offsets and integers become int32."""
    query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, *_ = given
    if attn_mask is not None and attn_mask.dtype not in (np.bool_, query.dtype):
        raise TypeError(f"attn_mask has dtype {attn_mask.dtype}, expected bool or {query.dtype} as query has")
    if cu_seqlens is not None:
        cu_seqlens, cu_seqlens_k = check_packed(query, key, value, cu_seqlens, cu_seqlens_k)
        given = given._replace(cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k)
    else:
        check_dense(query, key, value, cu_seqlens_k)
    relative = _relative(given)
    if relative is not None:
        given = AttentionArguments(*given[: -len(OF_RELATIVE) - 1], *terms_of(check_relative(relative, query, key)))
        if save:
            check_longest(relative.longest, cu_seqlens, cu_seqlens_k)
    if attn_mask is not None or given.bias is not None:
        shape = scores_shape(query, key, cu_seqlens, cu_seqlens_k, attn_mask, given.bias)
        broadcast_mask("attn_mask", attn_mask, shape)
        broadcast_mask("bias", given.bias, shape)
    check_compute_dtype(given.compute_dtype, backend, query)
    if given.dropout_p and given.compute_dtype is not None:
        raise ValueError(
            f"dropout_p is {given.dropout_p}, but compute_dtype is {given.compute_dtype!r}, which has no dropout"
        )
    if save and given.compute_dtype is not None:
        raise ValueError(f"save is True, but compute_dtype is {given.compute_dtype!r}, which has no gradients")
    if given.return_components and backend == "cupy":
        raise ValueError("return_components is True, but backend 'cupy' has no components: use 'numba' or 'numpy'")
    return given._replace(scale=scale_or_default(given.scale, query))


def scoring_of(given: Any) -> Scoring:
    """Return the terms of the scores in the backends' form from `AttentionArguments` or `AttentionSaved`."""
    query, key, attn_mask, bias = given.query, given.key, given.attn_mask, given.bias
    cu_seqlens, cu_seqlens_k, scale = given.cu_seqlens, given.cu_seqlens_k, given.scale
    if cu_seqlens is not None and cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens
    if attn_mask is not None or bias is not None:
        shape = scores_shape(query, key, cu_seqlens, cu_seqlens_k, attn_mask, bias)
        attn_mask, bias = broadcast_mask("attn_mask", attn_mask, shape), broadcast_mask("bias", bias, shape)
    relative = _relative(given)
    if relative is not None:
        relative = _with_four_axes(relative, cu_seqlens is not None)
    scale = scale_or_default(None, query) if scale is None else scale
    return Scoring(
        cu_seqlens, cu_seqlens_k, attn_mask, bias, given.is_causal, given.window, relative, scale, given.dropout_p,
        given.dropout_seed,
    )  # fmt: skip


def _with_four_axes(relative: RelativePositions, is_packed: bool) -> RelativePositions:
    tables = {name: getattr(relative, name) for name in ("position_key", "position_query", "position_bias")}
    per_query = {name: getattr(relative, name) for name in ("query_for_position", "segment_scores")}
    changes: dict[str, Any] = {name: _unit_columns(array) for name, array in tables.items() if array is not None}
    changes |= {name: four_axes(array, is_packed) for name, array in per_query.items() if array is not None}
    if is_packed and relative.segment_ids is not None:
        ids_k: Any = relative.segment_ids_k
        changes |= {"segment_ids": relative.segment_ids[None], "segment_ids_k": ids_k[None]}
    return replace(relative, **changes)


def four_axes(array: Operand, is_packed: bool) -> Operand:
    """Return `array` as (batch, heads, length, head_dim), the last axis contiguous; a view where possible."""
    return _unit_columns(array.transpose(1, 0, 2)[None] if is_packed else array)


def _unit_columns(array: Operand) -> Operand:
    """Return `array` with contiguous rows; a view where possible."""
    return array if array.strides[-1] == array.itemsize else array.copy(order="C")


def check_dense(query: Operand, key: Operand, value: Operand, cu_seqlens_k: NativeArray | None) -> None:
    """Check that query, key and value fit each other without offsets."""
    if cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k is given without cu_seqlens: packed arrays need both, dense ones neither")
    if query.ndim == 3:
        raise ValueError(
            f"query has shape {query.shape}, expected (batch, heads, length, head_dim); "
            "packed (tokens, heads, head_dim) arrays need cu_seqlens"
        )
    if not (query.ndim == key.ndim == 4 and query.shape[::3] == key.shape[::3]):
        checks.shape((None,) * 4, query=query)
        checks.shape((query.shape[0], None, None, query.shape[3]), key=key)
    _check_heads(query, key, value)


def check_packed(
    query: Operand, key: Operand, value: Operand, cu_seqlens: NativeArray, cu_seqlens_k: NativeArray | None
) -> tuple[NativeArray, NativeArray]:
    """Return the offsets of queries and of keys, as int32."""
    if not (query.ndim == key.ndim == 3 and query.shape[2] == key.shape[2]):
        checks.shape((None,) * 3, query=query)
        checks.shape((None, None, query.shape[2]), key=key)
    _check_heads(query, key, value)
    cu_seqlens = checks.offsets("cu_seqlens", cu_seqlens, "query", query.shape[0])
    if cu_seqlens_k is None:
        if key.shape[0] != query.shape[0]:
            raise ValueError(
                f"key has {key.shape[0]} tokens and query has {query.shape[0]}: cu_seqlens_k must say where the "
                "sequences of the keys lie"
            )
        return cu_seqlens, cu_seqlens
    cu_seqlens_k = checks.offsets("cu_seqlens_k", cu_seqlens_k, "key", key.shape[0])
    checks.shape(cu_seqlens.shape, cu_seqlens_k=cu_seqlens_k)
    return cu_seqlens, cu_seqlens_k


def _check_heads(query: Operand, key: Operand, value: Operand) -> None:
    if value.shape != key.shape:
        checks.shape(key.shape, value=value)
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared and (heads == 0 or shared == 0 or heads % shared):
        raise ValueError(f"key has {shared} heads and query has {heads}, expected a number that divides that")


def scores_shape(
    query: Operand, key: Operand, cu_seqlens: NativeArray | None, cu_seqlens_k: NativeArray | None,
    *masks: Operand | None,
) -> tuple[int, ...]:  # fmt: skip
    """Return (sequences, heads, longest query sequence, longest key sequence)."""
    if cu_seqlens is None:
        return (*query.shape[:3], key.shape[2])
    longest = _longest(cu_seqlens, query, -2, *masks), _longest(cu_seqlens_k, key, -1, *masks)
    return (cu_seqlens.shape[0] - 1, query.shape[1], *longest)


def _longest(offsets: NativeArray | None, array: Operand, axis: int, *masks: Operand | None) -> int:
    """Return the longest sequence; on a GPU, where offsets are not read, the length in the masks, or else a bound."""
    if isinstance(offsets, np.ndarray):
        return int(np.diff(offsets).max(initial=0))
    sizes = {mask.shape[axis] for mask in masks if mask is not None and mask.ndim >= -axis} - {1}
    return max(sizes, default=array.shape[0])


def broadcast_mask(name: str, array: Operand | None, shape: tuple[int, ...]) -> NativeArray | None:
    """Return a view of a mask or bias in the `scores_shape`; None stays None."""
    if array is None:
        return None
    padded = (1,) * (4 - array.ndim) + tuple(array.shape)
    if len(padded) > 4 or any(found not in (1, wanted) for found, wanted in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{name} has shape {array.shape}, expected one that broadcasts to "
            f"(sequences, heads, longest query, longest key) = {shape}"
        )
    return np.broadcast_to(array, shape)  # CuPy handles the call for its own arrays


def scale_or_default(scale: object, query: Operand) -> float:
    """Return the number `scale`, by default 1 / sqrt(head_dim)."""
    if scale is None:
        return 1 / math.sqrt(max(query.shape[-1], 1))
    return checks.number_of(query.dtype, "scale", scale)


def check_compute_dtype(compute_dtype: object, backend: str, query: Operand) -> None:
    """Check that the backend supports `compute_dtype` for the query's dtype."""
    if compute_dtype is None:
        return
    checks.choice("compute_dtype", compute_dtype, COMPUTE_DTYPES)
    if backend == "cupy":
        raise ValueError(
            f"compute_dtype is {compute_dtype!r}, but backend 'cupy' computes in the arrays' dtype: convert the arrays"
        )
    if query.dtype != np.float32:
        raise TypeError(f"query has dtype {query.dtype}, expected float32 with compute_dtype={compute_dtype!r}")


def check_window(window: object) -> tuple[int, int]:
    """Return (left, right), the numbers of keys before and after its own position that a query attends to."""
    if window is None:
        return UNLIMITED, UNLIMITED
    sides = window if isinstance(window, tuple | list) else (window, window)
    if len(sides) != 2:
        raise ValueError(f"window is {window!r}, expected an integer or a pair (left, right)")
    checked = (UNLIMITED if side is None else checks.integer_number("window", side, minimum=0) for side in sides)
    left, right = (min(side, UNLIMITED) for side in checked)
    return left, right


def check_relative(relative: RelativePositions, query: Operand, key: Operand) -> RelativePositions:
    """Check the terms against queries and keys (tokens on the first axis; dense: last but one); make integers int32."""
    _check_tables(relative, query)
    ids, ids_k = _check_segments(relative, query, key)
    rows: Any = relative.distance_rows
    checks.integer(distance_rows=rows)
    if rows.ndim != 1 or rows.shape[0] % 2 == 0:
        raise ValueError(f"distance_rows has shape {rows.shape}, expected an odd number of rows on one axis")
    checks.in_range("distance_rows", rows, table_rows(relative))
    rows = rows.astype(np.int32, copy=False)
    return replace(relative, distance_rows=rows, segment_ids=ids, segment_ids_k=ids_k)


def check_longest(longest: object, *offsets: NativeArray | None) -> None:
    """Check that no sequence of the offsets (None for dense arrays) is longer; those on a GPU are not read."""
    if longest is None:
        return
    longest = checks.integer_number("longest", longest, minimum=0)
    found = max((int(np.diff(it).max(initial=0)) for it in offsets if isinstance(it, np.ndarray)), default=0)
    if found > longest:
        raise ValueError(f"longest is {longest}, expected at least {found}, the longest sequence of cu_seqlens")


def table_rows(relative: RelativePositions) -> int:
    """Return the number of rows of the tables."""
    tables = relative.position_key, relative.position_query, relative.position_bias
    return next(table.shape[0] for table in tables if table is not None)


def heads_first(table: Operand | None) -> Operand | None:
    """Return a table, (rows, heads, head_dim) or (rows, heads), as (1, heads, rows, columns); None stays None."""
    if table is None:
        return None
    return (table if table.ndim == 3 else table[:, :, None]).transpose(1, 0, 2)[None]


def _check_tables(relative: RelativePositions, query: Operand) -> None:
    tables = {name: getattr(relative, name) for name in ("position_key", "position_query", "position_bias")}
    if all(table is None for table in tables.values()):
        raise ValueError("position_key, position_query and position_bias are all None, expected at least one of them")
    if relative.position_key is None and relative.query_for_position is not None:
        raise ValueError("query_for_position is given without position_key, the table that it is multiplied with")
    heads, head_dim = query.shape[1], query.shape[-1]
    for name, table in tables.items():
        if table is not None:
            checks.shape((None, heads) if name == "position_bias" else (None, heads, head_dim), **{name: table})
            checks.shape((table_rows(relative), *table.shape[1:]), **{name: table})
    checks.shape(query.shape, query_for_position=relative.query_for_position)


def _check_segments(relative: RelativePositions, query: Operand, key: Operand) -> tuple[Any, Any]:
    """Return the segments of queries and keys as int32, or (None, None)."""
    segment_ids, segment_ids_k, scores = relative.segment_ids, relative.segment_ids_k, relative.segment_scores
    if (segment_ids is None) != (scores is None):
        given = "segment_scores" if segment_ids is None else "segment_ids"
        raise ValueError(f"{given} is given alone, expected segment_ids and segment_scores together")
    if segment_ids is None:
        if segment_ids_k is not None:
            raise ValueError("segment_ids_k is given without segment_ids")
        return None, None
    checks.shape((*query.shape[:-1], 2), segment_scores=scores)
    tokens, tokens_k = _token_shape(query), _token_shape(key)
    ids: dict[str, Any] = {"segment_ids": segment_ids}
    if segment_ids_k is not None:
        ids["segment_ids_k"] = segment_ids_k
    elif tokens != tokens_k:
        raise ValueError(
            f"key has {tokens_k[-1]} tokens and query has {tokens[-1]}: segment_ids_k must say the segments of keys"
        )
    checks.integer(**ids)
    for (name, values), expected in zip(ids.items(), (tokens, tokens_k), strict=False):
        checks.shape(expected, **{name: values})
        low, high = (int(values.min()), int(values.max())) if isinstance(values, np.ndarray) and values.size else (0, 0)
        if max(-low, high) > MOST_SEGMENT:
            raise ValueError(f"{name} runs from {low} to {high}, expected magnitudes of at most {MOST_SEGMENT}")
    converted = [values.astype(np.int32, copy=False) for values in ids.values()]
    return converted[0], converted[-1]


def _token_shape(array: Operand) -> tuple[int, ...]:
    """Return (tokens,) for packed arrays, (batch, length) for dense ones."""
    return array.shape[:1] if array.ndim == 3 else (array.shape[0], array.shape[2])
