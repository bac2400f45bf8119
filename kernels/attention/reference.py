"""Scaled dot-product attention, dense or over packed sequences, with terms of relative position (positions.py).

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.

For each sequence and head, with Q (queries, head_dim), K and V (keys, head_dim), the distances d = i + keys - queries -
j and the rows r(d) of the tables A (position_key), B (position_query) and b (position_bias):

    S_ij = scale (q_i . k_j + p_i . A[r(d)] + k_j . B[r(d)] + t[i, segment_i != segment_j]) + b[r(d)] + bias + mask
    m_i = max_j S_ij,  l_i = log sum_j exp(S_ij - m_i)     together lse_i; (-inf, 0) for a query without keys, NaNs
                                                           where one of S is NaN or infinity
    P_ij = exp(S_ij - m_i - l_i)                           zeros for a query without keys
    O = P V

mask is -inf where a boolean mask is False, where the window (-left <= -d <= right) or causality (j <= i) hides the key.
With fewer heads of keys and values than of queries, head h of the queries has their head h // (heads / heads of keys).

With dropout (../dropout) O = (P o D) V, where D is 0 or 1 / (1 - p), and below dP = dO V^T o D and dV = (P o D)^T dO.

With compute_dtype "bfloat16" the factors (Q, K, V, p, A, B and the exponentials exp(S_ij - m_i)) are rounded to
bfloat16 first; sums, softmax and the division by the sum of the (unrounded) exponentials are in the working precision.

The gradients are computed from lse and the inputs, which give S and P again (Dao et al. 2022, arXiv:2205.14135):

    dV = P^T dO,  dP = dO V^T,  dS_ij = P_ij (dP_ij - sum_k P_ik dP_ik),  dbias = dS
    dq_i = scale sum_j dS_ij k_j                           dk_j = scale sum_i dS_ij (q_i + B[r(d)])
    dp_i = scale sum_j dS_ij A[r(d)]                       dA[r] = scale sum_{ij: r(d) = r} dS_ij p_i
    dt[i, c] = scale sum_{j: c = (segment_i != segment_j)} dS_ij   dB[r] = scale sum_{ij: r(d) = r} dS_ij k_j
    db[r] = sum_{ij: r(d) = r} dS_ij

The sum over k equals sum_d dO_id O_id, with which flash kernels save a pass, so O is an argument; but in that form the
gradient of a query with a single key would be the rounding error of two sums instead of zero. Gradients of tables and
of broadcast arrays are summed in float64, because they sum over all tokens.

All arrays of tokens are (batch, heads, length, ...), segments (batch, length). Packed: the batch is 1, the length holds
all tokens, and sequence s is the tokens cu_seqlens[s] to cu_seqlens[s + 1]; each is computed separately.
Masks and biases are (sequences, heads, longest query sequence, longest key sequence); each sequence uses its own
corner.
"""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..arrays import ieee_arithmetic, widen, working_dtype
from ..philox import random_bits, threshold
from .arguments import UNLIMITED, scores_shape
from .positions import TABLES, TERMS, RelativePositions


class Piece(NamedTuple):
    """A piece that is computed at once: the whole dense batch or one packed sequence."""

    queries: tuple[slice, ...]  # into query, output and arrays like them
    keys: tuple[slice, ...]  # into key and value
    scores: tuple[slice, ...]  # into mask, bias and probabilities

    def segments(self, relative):
        """Return where a query's segment differs from a key's, (batch, 1, queries, keys)."""
        batch, _, queries = self.queries
        ids, ids_k = relative.segment_ids[batch, queries], relative.segment_ids_k[batch, self.keys[2]]
        return (ids[:, :, None] != ids_k[:, None])[:, None]


@ieee_arithmetic
def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """Return (output, lse, probabilities or None, components or None)."""
    inputs = rounded_inputs(query, key, scoring.relative, compute_dtype)
    value = rounded(value, compute_dtype)
    output = empty_like(query, scoring.cu_seqlens)
    lse = np.empty((*query.shape[:3], 2), dtype=working_dtype(query.dtype))
    shape = scores_shape(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k)
    probs = np.zeros(shape, dtype=query.dtype) if return_probs else None
    for piece in _pieces(scoring):
        scores = _scores(_products(*inputs, scoring.scale, piece), scoring, piece)
        exponentials, total, lse[piece.queries] = _softmax(scores)
        kept = _kept(scoring, piece, scores.shape, query.shape[2])
        if probs is not None:
            _corner(probs, piece, scores)[...] = exponentials / total
        values = _for_heads(value[piece.keys], query.shape[1])
        if compute_dtype is None:
            output[piece.queries] = exponentials / total * kept @ values
        else:
            output[piece.queries] = rounded(exponentials, compute_dtype) @ values / total
    components = score_components(query, key, scoring, compute_dtype) if return_components else None
    return output, lse, probs, components


@ieee_arithmetic
def score_components(query, key, scoring, compute_dtype):
    """Return (content to content, content to position, position to content), zeros beyond each sequence."""
    inputs = rounded_inputs(query, key, scoring.relative, compute_dtype)
    shape = scores_shape(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k)
    tables = (None, None) if scoring.relative is None else (inputs[2].position_key, inputs[2].position_query)
    components = tuple(None if it is None else np.zeros(shape, query.dtype) for it in (query, *tables))
    for piece in _pieces(scoring):
        for target, product in zip(components, _products(*inputs, scoring.scale, piece), strict=True):
            if product is not None:
                _corner(target, piece, product)[...] = product
    return components


@ieee_arithmetic
def attention_backward(grad_output, query, key, value, output, lse, scoring, out):
    """Return (grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None).

    grad_bias has size 1 where bias is broadcast.
    """
    relative, heads = scoring.relative, query.shape[1]
    grad_query, grad_key, grad_value = out or (empty_like(array, scoring.cu_seqlens) for array in (query, key, value))
    grad_bias = None if scoring.bias is None else np.zeros(unbroadcast(scoring.bias).shape)
    grad_relative = None if relative is None else _empty_gradients(relative, scoring.cu_seqlens)
    for piece in _pieces(scoring):
        scores = _scores(_products(query, key, relative, scoring.scale, piece), scoring, piece)
        grad = widen(grad_output[piece.queries])
        probs = _probabilities(scores, widen(lse[piece.queries]))
        kept = _kept(scoring, piece, scores.shape, query.shape[2])
        grad_probs = grad @ transpose(_for_heads(value[piece.keys], heads)) * kept
        grad_scores = probs * (grad_probs - (probs * grad_probs).sum(axis=-1, keepdims=True))
        if grad_bias is not None:
            _add_reduced(grad_bias, grad_scores, piece)
        scaled = scoring.scale * grad_scores
        q, k = widen(query[piece.queries]), _for_heads(key[piece.keys], heads)
        of_query, of_key = scaled @ k, transpose(scaled) @ q
        if relative is not None:
            terms = _differentiate_terms(grad_scores, scaled, q, k, relative, grad_relative, piece)
            of_query, of_key = of_query + terms[0], of_key + terms[1]
        grad_query[piece.queries] = of_query
        grad_key[piece.keys] = _sum_heads(of_key, key.shape[1])
        grad_value[piece.keys] = _sum_heads(transpose(probs * kept) @ grad, key.shape[1])
    if grad_relative is not None:
        grad_relative = RelativePositions(
            None, **{name: array.astype(query.dtype, copy=False) for name, array in grad_relative.items()}
        )
    return grad_query, grad_key, grad_value, None if grad_bias is None else grad_bias.astype(query.dtype), grad_relative


# --- the pieces -------------------------------------------------------------------------------------


def _pieces(scoring) -> Iterator[Piece]:
    if scoring.cu_seqlens is None:
        everything = (slice(None), slice(None), slice(None))
        yield Piece(everything, everything, (slice(None),))
        return
    bounds = zip(pairwise(scoring.cu_seqlens.tolist()), pairwise(scoring.cu_seqlens_k.tolist()), strict=True)
    for sequence, (queries, keys) in enumerate(bounds):
        everything = (slice(None), slice(None))
        yield Piece((*everything, slice(*queries)), (*everything, slice(*keys)), (slice(sequence, sequence + 1),))


def _corner(array, piece, scores):
    """Return a piece's part of (sequences, heads, longest query, longest key)."""
    return array[piece.scores][..., : scores.shape[2], : scores.shape[3]]


def _for_heads(array, heads):
    """Return keys or values, widened, for each of the `heads` of the queries."""
    wide = widen(array)
    return wide if wide.shape[1] == heads else np.repeat(wide, heads // wide.shape[1], axis=1)


def _sum_heads(grad, heads):
    """Return the sum over the queries' heads that share a head of keys and values."""
    batch, of_queries, *rest = grad.shape
    return grad if of_queries == heads else grad.reshape(batch, heads, of_queries // heads, *rest).sum(axis=2)


# --- scores -----------------------------------------------------------------------------------------


def _products(query, key, relative, scale, piece):
    """Return the scaled components as in `score_components`, (batch, heads, queries, keys) each."""
    q, k = widen(query[piece.queries]), _for_heads(key[piece.keys], query.shape[1])
    to_position = from_position = None
    if relative is not None:
        rows = _distance_rows(relative, q.shape[2], k.shape[2])
        if relative.position_key is not None:
            p = q if relative.query_for_position is None else widen(relative.query_for_position[piece.queries])
            to_position = scale * _taken(p @ _columns(relative.position_key), rows)
        if relative.position_query is not None:
            from_position = scale * transpose(_taken(k @ _columns(relative.position_query), rows.T))
    return scale * (q @ transpose(k)), to_position, from_position


def _scores(products, scoring, piece):
    """Return S of the formula, (batch, heads, queries, keys), in the working precision."""
    scores, relative = sum(product for product in products if product is not None), scoring.relative
    queries, keys = scores.shape[2:]
    if relative is not None and relative.segment_scores is not None:
        same, other = (widen(relative.segment_scores[piece.queries])[..., column, None] for column in (0, 1))
        scores = scores + scoring.scale * np.where(piece.segments(relative), other, same)
    if relative is not None and relative.position_bias is not None:
        scores = scores + widen(relative.position_bias.T)[:, _distance_rows(relative, queries, keys)]
    if scoring.bias is not None:
        scores = scores + widen(_corner(scoring.bias, piece, scores))
    if scoring.attn_mask is not None:
        mask = _corner(scoring.attn_mask, piece, scores)
        scores = scores + (np.where(mask, 0, -np.inf).astype(scores.dtype) if mask.dtype == np.bool_ else widen(mask))
    if scoring.is_causal or scoring.window != (UNLIMITED, UNLIMITED):
        i, j, (left, right) = np.arange(queries)[:, None], np.arange(keys), scoring.window
        beyond = j - (i + keys - queries)  # the position of the key minus that of the query
        is_near = (-left <= beyond) & (beyond <= right) & ((j <= i) | (not scoring.is_causal))
        scores = np.where(is_near, scores, -np.inf)
    return scores


def _distance_rows(relative, queries, keys):
    """Return the table's row for each pair of query and key, (queries, keys)."""
    middle = len(relative.distance_rows) // 2
    distances = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    return relative.distance_rows[np.clip(distances, -middle, middle) + middle]


def _columns(table):
    """Return (rows, heads, head_dim) as (heads, head_dim, rows), with contiguous rows."""
    return transpose(widen(table.transpose(1, 0, 2)))


def _taken(products, rows):
    """Return products[b, h, i, rows[i, j]] as (batch, heads, i, j)."""
    return np.take_along_axis(products, np.broadcast_to(rows, (*products.shape[:2], *rows.shape)), axis=3)


# --- softmax ----------------------------------------------------------------------------------------


def _softmax(scores):
    """Return row-wise (exponentials, their sum or 1 if that is 0, lse); the greatest exponential is 1.

    So they are as large as the probabilities, and low precision rounds them like those.
    """
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    total = exponentials.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, 1, total)
    return exponentials, total, np.concatenate([np.where(np.isnan(total), total, peak), np.log(total)], axis=-1)


def _probabilities(scores, lse):
    peak, log_total = lse[..., :1], lse[..., 1:]
    return np.exp(scores - np.where(peak == -np.inf, 0, peak) - log_total)


def _kept(scoring, piece, shape, length):
    """Return the factors of dropout on the probabilities, (batch, heads, queries, keys): 0 or 1 / (1 - p); 1 without.

    The row of random bits (philox.py) of query i and head h is i * heads + h, with i counted through the batch.
    """
    if scoring.dropout_p == 0:
        return 1
    batch, heads, queries, keys = shape
    first = piece.queries[2].start or 0
    numbers = np.arange(batch)[:, None, None] * length + first + np.arange(queries)
    rows = (numbers * heads + np.arange(heads)[:, None]).reshape(-1)
    bits = random_bits(scoring.dropout_seed, rows, keys).reshape(shape)
    return np.where(bits >= threshold(scoring.dropout_p), 1 / (1 - scoring.dropout_p), 0)


# --- gradients --------------------------------------------------------------------------------------


def _empty_gradients(relative, cu_seqlens):
    """Return arrays for the gradients of relative terms, by name; those of tables are float64 zeros."""
    return {
        name: np.zeros(array.shape) if name in TABLES else empty_like(array, cu_seqlens)
        for name in TERMS
        if (array := getattr(relative, name)) is not None
    }


def _differentiate_terms(grad_scores, scaled, q, k, relative, grads, piece):
    """Return the addends to the gradients of queries and keys; add to and write into `grads`."""
    rows, of_query, of_key = _distance_rows(relative, *scaled.shape[2:]), 0, 0
    if relative.position_query is not None:
        table = relative.position_query, grads["position_query"]
        of_key = _differentiate_table(transpose(scaled), k, *table, rows.T)
    if relative.position_key is not None:
        table, p = (relative.position_key, grads["position_key"]), relative.query_for_position
        if p is None:
            of_query = _differentiate_table(scaled, q, *table, rows)
        else:
            of_position = _differentiate_table(scaled, widen(p[piece.queries]), *table, rows)
            grads["query_for_position"][piece.queries] = of_position
    if relative.position_bias is not None:
        np.add.at(grads["position_bias"], rows, grad_scores.sum(axis=0, dtype=np.float64).transpose(1, 2, 0))
    if relative.segment_scores is not None:
        is_other = piece.segments(relative)
        for column, chosen in enumerate((~is_other, is_other)):
            grads["segment_scores"][piece.queries][..., column] = np.where(chosen, scaled, 0).sum(axis=-1)
    return of_query, of_key


def _differentiate_table(grad_scores, vectors, table, grad_table, rows):
    """Add to grad_table, (rows, heads, head_dim), the gradient of the table; return that of `vectors`.

    grad_scores is (batch, heads, vectors, others); `rows`, (vectors, others), are the rows that were multiplied.
    """
    batch, heads, count, _ = grad_scores.shape
    per_row = np.zeros((batch, heads, count, len(table)), grad_scores.dtype)
    places = np.arange(batch)[:, None, None, None], np.arange(heads)[:, None, None], np.arange(count)[:, None], rows
    np.add.at(per_row, places, grad_scores)
    grad_table += (transpose(per_row).astype(np.float64) @ vectors).sum(axis=0).transpose(1, 0, 2)
    return per_row @ widen(table.transpose(1, 0, 2))


def _add_reduced(grad_bias, grad_scores, piece):
    """Add grad_scores into its piece of grad_bias, summed over the axes along which the bias is broadcast."""
    for axis in range(4):
        if grad_bias.shape[axis] == 1 and grad_scores.shape[axis] != 1:
            grad_scores = grad_scores.sum(axis=axis, keepdims=True, dtype=np.float64)
    sequences = piece.scores if grad_bias.shape[0] > 1 else (slice(None),)
    queries, keys = grad_scores.shape[2:]
    grad_bias[sequences][..., :queries, :keys] += grad_scores


# --- arrays -----------------------------------------------------------------------------------------


def rounded(array, compute_dtype):
    """Return `array`, with its values rounded to bfloat16 if `compute_dtype` says so."""
    if compute_dtype is None or array is None:
        return array
    return array.astype(importlib.import_module("ml_dtypes").bfloat16).astype(array.dtype)


def rounded_inputs(query, key, relative, compute_dtype):
    """Return (query, key, relative) with the factors of products rounded."""
    if compute_dtype is not None and relative is not None:
        names = ("position_key", "position_query", "query_for_position")
        relative = replace(relative, **{name: rounded(getattr(relative, name), compute_dtype) for name in names})
    return rounded(query, compute_dtype), rounded(key, compute_dtype), relative


def unbroadcast(array):
    """Return `array` with size 1 along the axes of stride 0."""
    return array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]


def empty_like(array, cu_seqlens, empty=np.empty):
    """Return a new array of this shape; when packed, its memory is C-contiguous as (tokens, heads, head_dim)."""
    if cu_seqlens is None:
        return empty(array.shape, array.dtype)
    _, heads, tokens, size = array.shape
    return empty((tokens, heads, size), array.dtype).transpose(1, 0, 2)[None]


def transpose(matrices):
    return matrices.swapaxes(-1, -2)
