"""Attention with relative positions: disentangled (He et al. 2021, https://arxiv.org/abs/2006.03654, DeBERTa) and that
of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860, XLNet), over packed sequences.

For each sequence and head, with the distances d = i + keys - queries - j and the rows r(d) of the tables A and B (the
end entries of distance_rows stand for all distances beyond them):

    S_ij = scale (q_i . k_j + p_i . A[r(d)] + k_j . B[r(d)] + t[i, segment_i != segment_j]) + mask
    lse_i = log sum_j exp(S_ij),   P_ij = exp(S_ij - lse_i),   O = P V

With compute_dtype "bfloat16" Q, K, V, A, B, p and the exponentials exp(S_ij - max_j S_ij) are rounded to bfloat16
before their products. The gradients follow from dS_ij = P_ij (dP_ij - sum_k P_ik dP_ik), dP = dO V^T, dV = P^T dO:

    dq_i = scale sum_j dS_ij k_j                              dk_j = scale sum_i dS_ij (q_i + B[r(d)])
    dp_i = scale sum_j dS_ij A[r(d)]                          dA[r] = scale sum_{ij: r(d) = r} dS_ij p_i
    dt[i, c] = scale sum_{j: c = (segment_i != segment_j)} dS_ij   dB[r] = scale sum_{ij: r(d) = r} dS_ij k_j

Those of the tables are summed in float64: they sum over all tokens.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..attention.reference import rounded, softmax_rows, transpose
from ..precision import widen, working_dtype


class Sequence(NamedTuple):
    """One sequence: where it lies, and the table's row of each of its pairs of query and key."""

    index: int
    queries: slice
    keys: slice
    rows: np.ndarray  # (queries, keys)


def relative_attention(
    query, key, value, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
    scale, return_probs, return_components, compute_dtype,
):  # fmt: skip
    """(output, lse, probabilities or None, components or None)."""
    components = None
    if return_components:
        components = score_components(
            query, key, position_key, position_query, query_for_position, distance_rows, cu_seqlens, cu_seqlens_k,
            scale, compute_dtype,
        )  # fmt: skip
    floats = query, key, position_key, position_query, query_for_position
    inputs = tuple(None if array is None else rounded(array, compute_dtype) for array in floats)
    value = rounded(value, compute_dtype)
    tokens, heads, _ = query.shape
    output = np.empty(query.shape, query.dtype)
    lse = np.empty((heads, tokens), working_dtype(query.dtype))
    shape = scores_shape(heads, cu_seqlens, cu_seqlens_k)
    probs = np.zeros(shape, query.dtype) if return_probs else None
    for sequence in _sequences(cu_seqlens, cu_seqlens_k, distance_rows):
        terms = _terms(*inputs, scale, sequence)
        scores = _scores(terms, segment_ids, segment_ids_k, segment_scores, attn_mask, scale, sequence)
        exponentials, total, lse[:, sequence.queries] = softmax_rows(scores)
        if return_probs:
            _corner(probs, sequence)[...] = exponentials / total
        if compute_dtype is None:
            mixed = exponentials / total @ _heads_first(value[sequence.keys])
        else:
            mixed = rounded(exponentials, compute_dtype) @ _heads_first(value[sequence.keys]) / total
        output[sequence.queries] = _tokens_first(mixed)
    return output, lse, probs, components


def score_components(
    query, key, position_key, position_query, query_for_position, distance_rows, cu_seqlens, cu_seqlens_k,
    scale, compute_dtype,
):  # fmt: skip
    """(content to content, content to position, position to content) of all sequences, zeros beyond their lengths."""
    floats = query, key, position_key, position_query, query_for_position
    inputs = tuple(None if array is None else rounded(array, compute_dtype) for array in floats)
    shape = scores_shape(query.shape[1], cu_seqlens, cu_seqlens_k)
    present = query, position_key, position_query  # the first is always there
    components = tuple(None if array is None else np.zeros(shape, query.dtype) for array in present)
    for sequence in _sequences(cu_seqlens, cu_seqlens_k, distance_rows):
        for target, term in zip(components, _terms(*inputs, scale, sequence), strict=True):
            if term is not None:
                _corner(target, sequence)[...] = term
    return components


@np.errstate(invalid="ignore")
def relative_attention_backward(
    grad_output, query, key, value, output, lse, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
):  # fmt: skip
    """The gradients of query, key, value, position_key, position_query, query_for_position and segment_scores."""
    floats = query, key, value, query_for_position, segment_scores
    grad_query, grad_key, grad_value, grad_p, grad_segments = (
        None if array is None else np.zeros(array.shape, array.dtype) for array in floats
    )
    grad_tables = [None if table is None else np.zeros(table.shape) for table in (position_key, position_query)]
    inputs = query, key, position_key, position_query, query_for_position
    for sequence in _sequences(cu_seqlens, cu_seqlens_k, distance_rows):
        of_queries, of_keys = sequence.queries, sequence.keys
        terms = _terms(*inputs, scale, sequence)
        scores = _scores(terms, segment_ids, segment_ids_k, segment_scores, attn_mask, scale, sequence)
        q, k, v = _heads_first(query[of_queries]), _heads_first(key[of_keys]), _heads_first(value[of_keys])
        grad = _heads_first(grad_output[of_queries])
        probs, grad_scores = _differentiate_softmax(scores, lse[:, of_queries], grad @ transpose(v))
        grad_scores = scale * grad_scores
        grad_q, grad_k = grad_scores @ k, transpose(grad_scores) @ q
        if position_query is not None:
            rows = sequence.rows.T
            grad_k = grad_k + _differentiate_table(transpose(grad_scores), k, position_query, rows, grad_tables[1])
        if query_for_position is not None:
            p = _heads_first(query_for_position[of_queries])
            share = _differentiate_table(grad_scores, p, position_key, sequence.rows, grad_tables[0])
            grad_p[of_queries] = _tokens_first(share)
        elif position_key is not None:
            grad_q = grad_q + _differentiate_table(grad_scores, q, position_key, sequence.rows, grad_tables[0])
        if segment_scores is not None:
            is_other = _is_other(segment_ids, segment_ids_k, sequence)
            for column, chosen in enumerate((~is_other, is_other)):
                grad_segments[of_queries, :, column] = np.where(chosen, grad_scores, 0).sum(axis=-1).T
        grad_query[of_queries], grad_key[of_keys] = _tokens_first(grad_q), _tokens_first(grad_k)
        grad_value[of_keys] = _tokens_first(transpose(probs) @ grad)
    tables = (None if grad is None else grad.astype(query.dtype) for grad in grad_tables)
    return grad_query, grad_key, grad_value, *tables, grad_p, grad_segments


@np.errstate(invalid="ignore")
def _differentiate_softmax(scores, lse, grad_probs):
    """(probabilities, gradients of the scores)."""
    probs = np.exp(scores - np.where(lse == -np.inf, 0, lse)[..., None])
    return probs, probs * (grad_probs - (probs * grad_probs).sum(axis=-1, keepdims=True))


def _sequences(cu_seqlens, cu_seqlens_k, distance_rows) -> Iterator[Sequence]:
    middle = len(distance_rows) // 2
    for index in range(len(cu_seqlens) - 1):
        queries, keys = (slice(int(of[index]), int(of[index + 1])) for of in (cu_seqlens, cu_seqlens_k))
        count, count_k = queries.stop - queries.start, keys.stop - keys.start
        distances = np.arange(count)[:, None] + count_k - count - np.arange(count_k)
        rows = distance_rows[np.clip(distances, -middle, middle) + middle]
        yield Sequence(index, queries, keys, rows)


@np.errstate(invalid="ignore")
def _terms(query, key, position_key, position_query, query_for_position, scale, sequence):
    """(content to content, content to position, position to content), scaled, (heads, queries, keys) each."""
    q, k = _heads_first(query[sequence.queries]), _heads_first(key[sequence.keys])
    to_position = from_position = None
    if position_key is not None:
        p = q if query_for_position is None else _heads_first(query_for_position[sequence.queries])
        to_position = scale * _taken(p @ transpose(_heads_first(position_key)), sequence.rows)
    if position_query is not None:
        from_position = scale * transpose(_taken(k @ transpose(_heads_first(position_query)), sequence.rows.T))
    return scale * (q @ transpose(k)), to_position, from_position


def _taken(products, rows):
    """products[h, i, rows[i, j]] as (heads, i, j)."""
    return np.take_along_axis(products, np.broadcast_to(rows, (len(products), *rows.shape)), axis=2)


@np.errstate(invalid="ignore")
def _scores(terms, segment_ids, segment_ids_k, segment_scores, attn_mask, scale, sequence):
    """S of the formula, (heads, queries, keys), in the working precision."""
    scores = sum(term for term in terms if term is not None)
    if segment_scores is not None:
        same, other = (_heads_first(segment_scores[sequence.queries])[..., column, None] for column in (0, 1))
        scores = scores + scale * np.where(_is_other(segment_ids, segment_ids_k, sequence), other, same)
    if attn_mask is None:
        return scores
    mask = _corner(attn_mask, sequence)
    return np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + widen(mask)


def _differentiate_table(grad_scores, vectors, table, rows, grad_table):
    """Add to grad_table, (rows, heads, head_dim), what `vectors` multiplied with it; the gradient of the vectors.

    grad_scores (heads, vectors, others) and rows (vectors, others) say with which row, and how much.
    """
    heads, count, _ = grad_scores.shape
    per_row = np.zeros((heads, count, len(table)), grad_scores.dtype)
    np.add.at(per_row, (np.arange(heads)[:, None, None], np.arange(count)[:, None], rows), grad_scores)
    grad_table += (transpose(per_row).astype(np.float64) @ vectors).transpose(1, 0, 2)
    return per_row @ _heads_first(table)


def _is_other(segment_ids, segment_ids_k, sequence):
    return segment_ids[sequence.queries, None] != segment_ids_k[sequence.keys]


def _heads_first(array):
    """(tokens, heads, head_dim) in the working precision as contiguous (heads, tokens, head_dim)."""
    return widen(array.transpose(1, 0, 2))


def _tokens_first(array):
    return array.transpose(1, 0, 2)


def _corner(array, sequence):
    """What belongs to a sequence of (sequences, heads, longest query, longest key)."""
    queries, keys = sequence.rows.shape
    return array[sequence.index, :, :queries, :keys]


def scores_shape(heads, cu_seqlens, cu_seqlens_k):
    """(sequences, heads, longest query sequence, longest key sequence)."""
    longest, longest_k = (int(np.diff(offsets).max(initial=0)) for offsets in (cu_seqlens, cu_seqlens_k))
    return len(cu_seqlens) - 1, heads, longest, longest_k
