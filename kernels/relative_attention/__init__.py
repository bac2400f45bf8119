"""Attention whose scores depend on content and on relative position (DeBERTa, XLNet), packed, both directions.

What the backends implement (rows of every floating array are contiguous, other strides are free; offsets, ids and
distance_rows are int32; mask as `attention` hands it over, (sequences, heads, longest query, longest key) with strides
of 0 where it is broadcast; what is absent is None, offsets are always there):

    relative_attention(
        query, key, value, position_key, position_query, query_for_position, distance_rows,
        segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
        scale, return_probs, return_components, compute_dtype,
    ) -> (output (tokens, heads, head_dim), lse (heads, tokens), probabilities or None, components or None)

    relative_attention_backward(
        grad_output, query, key, value, output, lse, position_key, position_query, query_for_position, distance_rows,
        segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
    ) -> the fields of `Gradients`, None where the input is None
"""

from typing import Any, NamedTuple

import numpy as np

from .. import checks, dispatch
from ..attention.arguments import broadcast_mask, check_compute_dtype, check_packed, scale_or_default, scores_shape
from ..precision import working_dtype

OPTIONAL = (
    "position_key", "position_query", "query_for_position", "segment_ids", "segment_ids_k", "segment_scores",
    "cu_seqlens", "cu_seqlens_k", "attn_mask",
)  # fmt: skip
MOST_SEGMENT = 2**24 - 1  # the largest magnitude of a segment id: float32 holds all integers up to it


class Gradients(NamedTuple):
    """The gradients of `relative_attention`, each of its array's shape and dtype; None where the array is None."""

    query: Any
    key: Any
    value: Any
    position_key: Any
    position_query: Any
    query_for_position: Any
    segment_scores: Any


def relative_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    distance_rows: Any,
    position_key: Any = None,
    position_query: Any = None,
    query_for_position: Any = None,
    segment_ids: Any = None,
    segment_ids_k: Any = None,
    segment_scores: Any = None,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    attn_mask: Any = None,
    scale: float | None = None,
    compute_dtype: str | None = None,
    return_lse: bool = False,
    return_probs: bool = False,
    return_components: bool = False,
    backend: str | None = None,
) -> Any:
    """softmax(S + mask) @ value for each sequence and head, where S adds terms of relative position to query @ key.T.

    Query i of a sequence stands at the key position i + keys - queries, so that earlier keys are memory. For key j and
    the distance d = i + keys - queries - j:

        S_ij = scale * ( q_i . k_j                                        content to content
                       + p_i . position_key[r(d)]                         content to position
                       + k_j . position_query[r(d)]                       position to content
                       + segment_scores[i, h, segment_ids[i] != segment_ids_k[j]] )
        r(d) = distance_rows[d + (len(distance_rows) - 1) // 2], the end entries for all d beyond them

    A query that sees no key gives zeros. A key that is hidden must still be finite. Sources: disentangled attention, He
    et al. 2021, arXiv:2006.03654; Transformer-XL, Dai et al. 2019, arXiv:1901.02860; segments, Yang et al. 2019,
    arXiv:1906.08237.

    Args:
        query: packed, (tokens, heads, head_dim). float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any
            floating dtype on NumPy.
        key, value: (key tokens, heads, head_dim), of the query's dtype.
        distance_rows: an odd number of integers: the row of the tables for each distance, ascending, 0 in the middle.
            On a GPU their values are not checked.
        position_key: table of what a query's content looks for, (rows, heads, head_dim), of the query's dtype.
        position_query: table of what looks for a key's content, of the same shape; one of the two may be None.
        query_for_position: p of the formula, of the query's shape and dtype; by default the query. Needs position_key.
        segment_ids: integers of a magnitude below 2**24, (tokens,); on a GPU their values are not checked.
        segment_ids_k: the same for the keys, (key tokens,); by default segment_ids.
        segment_scores: (tokens, heads, 2) of the query's dtype: for keys of the same segment and of another. Given with
            segment_ids.
        cu_seqlens: the offsets of the sequences, (sequences + 1,) integers from 0 to tokens; by default all tokens are
            one sequence. On a GPU their values are not checked.
        cu_seqlens_k: the same for key and value; by default cu_seqlens, or one sequence.
        attn_mask: boolean, True where a query may see a key, or of the query's dtype and added to the scores (-inf
            hides). Broadcasts to (sequences, heads, longest query sequence, longest key sequence).
        scale: 1 / sqrt(head_dim) by default.
        compute_dtype: "bfloat16" rounds what is multiplied (query, key, value, both tables, query_for_position and the
            probabilities), all float32, to bfloat16; sums and softmax are float32 still. Not on CUDA.
        return_lse: also return the log-sum-exp of the scores, which `relative_attention_backward` needs.
        return_probs: also return the probabilities.
        return_components: also return the three scaled terms of S. Not on CUDA.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        output, of the query's shape and dtype, or a tuple of it and what is asked for, in this order: lse (heads,
        tokens) in float32 (float64 for float64), -inf where a query sees no key; probabilities (sequences, heads,
        longest query sequence, longest key sequence) in the query's dtype, zeros beyond the length of a sequence;
        the tuple (content to content, content to position, position to content), each like the probabilities, None
        where the table is None.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape, offset, row, segment, scale or compute_dtype.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, query=query, key=key, value=value, position_key=position_key,
        position_query=position_query, query_for_position=query_for_position, distance_rows=distance_rows,
        segment_ids=segment_ids, segment_ids_k=segment_ids_k, segment_scores=segment_scores,
        cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, attn_mask=attn_mask,
    )  # fmt: skip
    inputs = _normalise(call.backend, *call.arrays)
    check_compute_dtype(compute_dtype, call.backend, inputs.query)
    if return_components and call.backend == "cupy":
        raise ValueError("return_components is True, but backend 'cupy' has no components: use 'numba' or 'numpy'")
    output, lse, probs, components = call.compute(
        "relative_attention", *inputs, scale_or_default(scale, inputs.query), bool(return_probs),
        bool(return_components), compute_dtype,
    )  # fmt: skip
    output, lse, probs = call.hand_back((output, lse, probs))
    asked = output, *([lse] if return_lse else []), *([probs] if return_probs else [])
    if return_components:
        asked = *asked, call.hand_back(components)
    return asked if len(asked) > 1 else output


def relative_attention_backward(
    grad_output: Any,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    *,
    distance_rows: Any,
    position_key: Any = None,
    position_query: Any = None,
    query_for_position: Any = None,
    segment_ids: Any = None,
    segment_ids_k: Any = None,
    segment_scores: Any = None,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    attn_mask: Any = None,
    scale: float | None = None,
    backend: str | None = None,
) -> Gradients:
    """The gradients of `relative_attention`; the probabilities are computed again from lse.

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        output, lse: what `relative_attention` returned with return_lse=True.
        query, key, value, distance_rows, position_key, position_query, query_for_position, segment_ids, segment_ids_k,
            segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale, backend: as for `relative_attention`.

    Returns:
        A named tuple: query, key, value, position_key, position_query, query_for_position, segment_scores, each of the
        shape and dtype of its array, None where that is None. Without query_for_position the query's gradient holds
        both of its parts. attn_mask has no gradient.

    Raises:
        As `relative_attention`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, query=query, key=key, value=value, position_key=position_key,
        position_query=position_query, query_for_position=query_for_position, distance_rows=distance_rows,
        segment_ids=segment_ids, segment_ids_k=segment_ids_k, segment_scores=segment_scores,
        cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, attn_mask=attn_mask,
        grad_output=grad_output, output=output, lse=lse,
    )  # fmt: skip
    *arrays, grad_output, output, lse = call.arrays
    inputs = _normalise(call.backend, *arrays)
    checks.floating(call.backend, query=inputs.query, grad_output=grad_output, output=output)
    checks.shape(inputs.query.shape, grad_output=grad_output, output=output)
    expected = working_dtype(inputs.query.dtype)
    if lse.dtype != expected:
        raise TypeError(f"lse has dtype {lse.dtype}, expected {expected} for a query of {inputs.query.dtype}")
    checks.shape((inputs.query.shape[1], inputs.query.shape[0]), lse=lse)
    gradients = call.compute(
        "relative_attention_backward", _unit_columns(grad_output), *inputs[:3], _unit_columns(output), lse,
        *inputs[3:], scale_or_default(scale, inputs.query),
    )  # fmt: skip
    return Gradients(*call.hand_back(tuple(gradients)))


class _Inputs(NamedTuple):
    """Checked arguments in the form and order that the backends take them."""

    query: Any
    key: Any
    value: Any
    position_key: Any
    position_query: Any
    query_for_position: Any
    distance_rows: Any
    segment_ids: Any
    segment_ids_k: Any
    segment_scores: Any
    cu_seqlens: Any
    cu_seqlens_k: Any
    attn_mask: Any


def _normalise(
    backend: str, query: Any, key: Any, value: Any, position_key: Any, position_query: Any, query_for_position: Any,
    distance_rows: Any, segment_ids: Any, segment_ids_k: Any, segment_scores: Any,
    cu_seqlens: Any, cu_seqlens_k: Any, attn_mask: Any,
) -> _Inputs:  # fmt: skip
    checks.floating(
        backend, query=query, key=key, value=value, position_key=position_key, position_query=position_query,
        query_for_position=query_for_position, segment_scores=segment_scores,
    )  # fmt: skip
    if attn_mask is not None and attn_mask.dtype not in (np.bool_, query.dtype):
        raise TypeError(f"attn_mask has dtype {attn_mask.dtype}, expected bool or {query.dtype} as query has")
    cu_seqlens, cu_seqlens_k = _offsets(query, key, value, cu_seqlens, cu_seqlens_k)
    _check_tables(query, position_key, position_query, query_for_position)
    distance_rows = _check_distance_rows(distance_rows, position_query if position_key is None else position_key)
    segment_ids, segment_ids_k = _check_segments(query, key, segment_ids, segment_ids_k, segment_scores)
    if attn_mask is not None:
        shape = scores_shape(query, key, cu_seqlens, cu_seqlens_k, attn_mask)
        attn_mask = broadcast_mask("attn_mask", attn_mask, shape)
    floats = (query, key, value, position_key, position_query, query_for_position)
    return _Inputs(
        *map(_unit_columns, floats), distance_rows, segment_ids, segment_ids_k, _unit_columns(segment_scores),
        cu_seqlens, cu_seqlens_k, attn_mask,
    )  # fmt: skip


def _offsets(query: Any, key: Any, value: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> tuple[Any, Any]:
    if cu_seqlens is None:
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k is given without cu_seqlens: give both, or neither for one sequence")
        checks.shape((None,) * 3, query=query, key=key)
        cu_seqlens, cu_seqlens_k = (
            dispatch.array_module(array).asarray([0, array.shape[0]], dtype=np.int32) for array in (query, key)
        )
    return check_packed(query, key, value, cu_seqlens, cu_seqlens_k)


def _check_tables(query: Any, position_key: Any, position_query: Any, query_for_position: Any) -> None:
    if position_key is None and position_query is None:
        raise ValueError("position_key and position_query are both None, expected at least one of them")
    if position_key is None and query_for_position is not None:
        raise ValueError("query_for_position is given without position_key, the table that it is multiplied with")
    checks.shape((None, *query.shape[1:]), position_key=position_key, position_query=position_query)
    if position_key is not None:
        checks.shape(position_key.shape, position_query=position_query)
    checks.shape(query.shape, query_for_position=query_for_position)


def _check_distance_rows(distance_rows: Any, table: Any) -> Any:
    """The rows as int32."""
    checks.integer(distance_rows=distance_rows)
    if distance_rows.ndim != 1 or distance_rows.shape[0] % 2 == 0:
        raise ValueError(f"distance_rows has shape {distance_rows.shape}, expected an odd number of rows on one axis")
    checks.in_range("distance_rows", distance_rows, table.shape[0])
    return distance_rows.astype(np.int32, copy=False)


def _check_segments(query: Any, key: Any, segment_ids: Any, segment_ids_k: Any, segment_scores: Any) -> tuple:
    """The segments of queries and keys as int32, or Nones."""
    if (segment_ids is None) != (segment_scores is None):
        given = "segment_scores" if segment_ids is None else "segment_ids"
        raise ValueError(f"{given} is given alone, expected segment_ids and segment_scores together")
    if segment_ids is None:
        if segment_ids_k is not None:
            raise ValueError("segment_ids_k is given without segment_ids")
        return None, None
    checks.shape((*query.shape[:2], 2), segment_scores=segment_scores)
    ids = {"segment_ids": segment_ids}
    if segment_ids_k is not None:
        ids["segment_ids_k"] = segment_ids_k
    elif key.shape[0] != query.shape[0]:
        raise ValueError(
            f"key has {key.shape[0]} tokens and query has {query.shape[0]}: segment_ids_k must say the segments of keys"
        )
    checks.integer(**ids)
    for (name, values), array in zip(ids.items(), (query, key), strict=False):
        checks.shape((array.shape[0],), **{name: values})
        _check_magnitude(name, values)
    converted = [values.astype(np.int32, copy=False) for values in ids.values()]
    return converted[0], converted[-1]


def _check_magnitude(name: str, values: Any) -> None:
    if isinstance(values, np.ndarray) and values.size:
        low, high = int(values.min()), int(values.max())
        if max(-low, high) > MOST_SEGMENT:
            raise ValueError(f"{name} runs from {low} to {high}, expected magnitudes of at most {MOST_SEGMENT}")


def _unit_columns(array: Any) -> Any:
    """`array` with contiguous rows; a view where possible."""
    return array if array is None or array.strides[-1] == array.itemsize else array.copy(order="C")
