"""Scaled dot-product attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), dense or over packed sequences.

For each sequence and head, with Q (queries, head_dim), K and V (keys, head_dim):

    S = scale Q K^T + bias + mask        mask: -inf where a boolean mask is False or causality hides the key
    lse_i = log sum_j exp(S_ij)
    P_ij = exp(S_ij - lse_i)             zeros for a query that sees no key (lse_i = -inf)
    O = P V

With compute_dtype "bfloat16" Q, K, V and the exponentials exp(S_ij - max_j S_ij) are rounded to bfloat16 before their
products; sums, softmax and the division by the sum of the (unrounded) exponentials are in the working precision.

The gradients are computed from lse, S and P again from the inputs (Dao et al. 2022, arXiv:2205.14135):

    dV = P^T dO,  dP = dO V^T,  dS_ij = P_ij (dP_ij - sum_k P_ik dP_ik),
    dQ = scale dS K,  dK = scale dS^T Q,  dbias = dS

The sum over k equals sum_d dO_id O_id, which flash kernels use to save a pass and for which O is handed over; but in
that form a query with a single key would get the rounding of two different sums as its gradient instead of zero.

All arrays are (batch, heads, length, head_dim). Packed: the batch is 1, the length holds all tokens, and sequence s is
the tokens cu_seqlens[s] to cu_seqlens[s + 1]; every sequence is computed by itself. Masks and biases are
(sequences, heads, longest query sequence, longest key sequence), of which each sequence uses its own corner.
"""

import importlib
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..precision import widen, working_dtype


class Piece(NamedTuple):
    """What is computed at once: the whole dense batch, or one packed sequence."""

    queries: tuple[slice, ...]  # into query, output and their like
    keys: tuple[slice, ...]  # into key and value
    scores: tuple[slice, ...]  # into mask, bias and probabilities


def attention(
    query, key, value, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale, return_probs, compute_dtype
):
    """(output, lse, probabilities or None)."""
    query, key, value = (rounded(array, compute_dtype) for array in (query, key, value))
    output = empty_like(query, cu_seqlens)
    lse = np.empty(query.shape[:3], dtype=working_dtype(query.dtype))
    probs = None
    if return_probs:
        probs = np.zeros(scores_shape(query, key, cu_seqlens, cu_seqlens_k), dtype=query.dtype)
    for piece in _pieces(cu_seqlens, cu_seqlens_k):
        scores = _scores(query, key, attn_mask, bias, is_causal, scale, piece)
        exponentials, total, lse[piece.queries] = softmax_rows(scores)
        if probs is not None:
            probs[piece.scores][..., : scores.shape[2], : scores.shape[3]] = exponentials / total
        if compute_dtype is None:
            output[piece.queries] = exponentials / total @ widen(value[piece.keys])
        else:
            output[piece.queries] = rounded(exponentials, compute_dtype) @ widen(value[piece.keys]) / total
    return output, lse, probs


@np.errstate(invalid="ignore")
def attention_backward(
    grad_output, query, key, value, output, lse, cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale
):
    """(grad_query, grad_key, grad_value, grad_bias or None); grad_bias has size 1 where bias is broadcast."""
    grad_query = empty_like(query, cu_seqlens)
    grad_key, grad_value = empty_like(key, cu_seqlens), empty_like(value, cu_seqlens)
    grad_bias = None if bias is None else np.zeros(_unbroadcast(bias).shape)
    for piece in _pieces(cu_seqlens, cu_seqlens_k):
        scores = _scores(query, key, attn_mask, bias, is_causal, scale, piece)
        piece_lse = widen(lse[piece.queries])[..., None]
        probs = np.exp(scores - np.where(piece_lse == -np.inf, 0, piece_lse))
        grad = widen(grad_output[piece.queries])
        grad_value[piece.keys] = transpose(probs) @ grad
        grad_probs = grad @ transpose(widen(value[piece.keys]))
        grad_scores = probs * (grad_probs - (probs * grad_probs).sum(axis=-1, keepdims=True))
        grad_query[piece.queries] = scale * (grad_scores @ widen(key[piece.keys]))
        grad_key[piece.keys] = scale * (transpose(grad_scores) @ widen(query[piece.queries]))
        if grad_bias is not None:
            _add_reduced(grad_bias, grad_scores, piece)
    return grad_query, grad_key, grad_value, None if bias is None else grad_bias.astype(bias.dtype)


def _pieces(cu_seqlens, cu_seqlens_k) -> Iterator[Piece]:
    if cu_seqlens is None:
        everything = (slice(None), slice(None), slice(None))
        yield Piece(everything, everything, (slice(None),))
        return
    bounds = zip(pairwise(cu_seqlens.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    for sequence, (queries, keys) in enumerate(bounds):
        everything = (slice(None), slice(None))
        yield Piece((*everything, slice(*queries)), (*everything, slice(*keys)), (slice(sequence, sequence + 1),))


@np.errstate(invalid="ignore")
def _scores(query, key, attn_mask, bias, is_causal, scale, piece):
    """S of the formula, (batch, heads, queries, keys), in the working precision."""
    scores = scale * (widen(query[piece.queries]) @ transpose(widen(key[piece.keys])))
    queries, keys = scores.shape[2:]
    if bias is not None:
        scores += widen(bias[piece.scores][..., :queries, :keys])
    if attn_mask is not None:
        mask = attn_mask[piece.scores][..., :queries, :keys]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + widen(mask)
    if is_causal:
        scores[..., ~np.tri(queries, keys, dtype=np.bool_)] = -np.inf
    return scores


@np.errstate(invalid="ignore", divide="ignore")
def softmax_rows(scores):
    """Row-wise (exponentials, their sum or 1 if that is 0, its logarithm); the greatest exponential is 1.

    So they are of the size of the probabilities, to which they are rounded in low precision.
    """
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(peak == -np.inf, 0, peak)
    exponentials = np.exp(scores - shift)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials, np.where(total == 0, 1, total), (np.log(total) + shift)[..., 0]


def rounded(array, compute_dtype):
    """`array` with its values rounded to bfloat16, if that is asked for."""
    if compute_dtype is None:
        return array
    return array.astype(importlib.import_module("ml_dtypes").bfloat16).astype(array.dtype)


def _add_reduced(grad_bias, grad_scores, piece):
    """Add grad_scores into its piece of grad_bias, summed over the axes along which the bias is broadcast."""
    for axis in range(4):
        if grad_bias.shape[axis] == 1 and grad_scores.shape[axis] != 1:
            grad_scores = grad_scores.sum(axis=axis, keepdims=True, dtype=np.float64)
    sequences = piece.scores if grad_bias.shape[0] > 1 else (slice(None),)
    queries, keys = grad_scores.shape[2:]
    grad_bias[sequences][..., :queries, :keys] += grad_scores


def _unbroadcast(array):
    """`array` with size 1 along the axes of stride 0."""
    return array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]


def scores_shape(query, key, cu_seqlens, cu_seqlens_k):
    batch, heads, queries, _ = query.shape
    if cu_seqlens is None:
        return batch, heads, queries, key.shape[2]
    longest_query, longest_key = (int(np.diff(offsets).max(initial=0)) for offsets in (cu_seqlens, cu_seqlens_k))
    return len(cu_seqlens) - 1, heads, longest_query, longest_key


def empty_like(array, cu_seqlens):
    """A new array of this shape; when packed, its memory is C-contiguous as (tokens, heads, head_dim)."""
    if cu_seqlens is None:
        return np.empty(array.shape, dtype=array.dtype)
    _, heads, tokens, head_dim = array.shape
    return np.empty((tokens, heads, head_dim), dtype=array.dtype).transpose(1, 0, 2)[None]


def transpose(matrices):
    return matrices.swapaxes(-1, -2)
