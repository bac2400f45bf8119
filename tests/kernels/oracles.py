"""Naive oracles: the operations once more, one number at a time in Python's floats, to test reference.py against.

They share nothing with the code under test: no NumPy arithmetic, no vectorisation, `math.fsum` for every sum. All take
and return float64 arrays, and are meant for small ones.
"""

import math
import operator
from itertools import pairwise, product

import numpy as np

from bertcore.kernels.philox import random_bits


def softmax(input, dim):
    return _along(_softmax_line, input, dim)


def _along(function, x, dim):
    return np.apply_along_axis(function, dim, x) if x.size else np.zeros(x.shape)


def _softmax_line(line):
    peak, log_total = _highest_and_log(line)
    if any(math.isnan(value) or value == math.inf for value in line):
        return [math.nan] * len(line)
    return [math.exp(value - peak - log_total) if peak > -math.inf else 0.0 for value in line]


def _log_sum_exp(values):
    if any(math.isnan(value) or value == math.inf for value in values):
        return math.nan
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(value - peak) for value in values))


def layer_norm(input, weight=None, bias=None, eps=0.0, residual=None):
    def line(values):
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return [(value - mean) / math.sqrt(variance + eps) for value in values]

    normalised = _along(line, input if residual is None else input + residual, -1)
    return normalised * (1 if weight is None else weight) + (0 if bias is None else bias)


def dropout(input, p, seed, residual=None):
    is_kept = random_bits(seed, np.zeros(1), input.size).reshape(input.shape) >= p * 2**32
    return np.where(is_kept, input / (1 - p), 0) + (0 if residual is None else residual)


def dropout_layer_norm(input, residual, weight=None, bias=None, eps=0.0, *, p, seed):
    return layer_norm(dropout(input, p, seed, residual), weight, bias, eps)


def rms_norm(input, weight=None, eps=0.0, residual=None):
    def line(values):
        square = math.fsum(value**2 for value in values) / len(values)
        return [value / math.sqrt(square + eps) for value in values]

    normalised = _along(line, input if residual is None else input + residual, -1)
    return normalised * (1 if weight is None else weight)


def affine(input, weight, bias, residual=None):
    return (input if residual is None else input + residual) * weight + bias


def activation(input, activation):
    return _activated(input, activation)


def _activated(x, name):
    return np.array([ACTIVATIONS[name](float(value)) for value in x.flat], np.float64).reshape(x.shape)


def gelu(input, approximate="none", bias=None):
    return _activated(input if bias is None else input + bias, "gelu" if approximate == "none" else "gelu_tanh")


def gated_activation(input, activation, gate="first"):
    first, second = np.split(input, 2, axis=-1)
    gates, values = (first, second) if gate == "first" else (second, first)
    return _activated(gates, activation) * values


ACTIVATIONS = {
    "relu": lambda x: 0.0 if x <= 0 else x,  # NaN is NaN
    "tanh": math.tanh,
    "silu": lambda x: x * (1 + math.tanh(x / 2)) / 2,
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def linear(input, weight, bias=None, activation=None, residual=None):
    rows = input.reshape(-1, weight.shape[1]) if weight.shape[1] else np.zeros((math.prod(input.shape[:-1]), 0))
    output = np.array([[_dot(row, column) for column in weight] for row in rows], np.float64)
    output = output.reshape(*input.shape[:-1], len(weight)) + (0 if bias is None else bias)
    if activation is not None:
        output = _activated(output, activation)
    return output if residual is None else output + residual


def _dot(row, column):
    return math.fsum(a * b for a, b in zip(row, column, strict=True))


def rotary(input, cos, sin, cu_seqlens=None, positions=None, interleaved=False):
    """Each pair as a complex number, times that of its angle."""
    if positions is None:
        offsets = [0, len(input)] if cu_seqlens is None else cu_seqlens.tolist()
        positions = [place for start, stop in pairwise(offsets) for place in range(stop - start)]
    turned, half = input.copy(), cos.shape[1]
    for *at, pair in np.ndindex(*input.shape[:-1], half):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, half + pair)
        place = positions[at[0]], pair
        number = complex(input[*at, first], input[*at, second]) * complex(cos[place], sin[place])
        turned[*at, first], turned[*at, second] = number.real, number.imag
    return turned


def embedding(input, weight):
    rows = np.array([weight[int(index)] for index in input.flat], np.float64)
    return rows.reshape(*input.shape, weight.shape[1])


def maxsim(query, document, cu_seqlens, cu_seqlens_q=None):
    queries = list(query) if cu_seqlens_q is None else [query[first:last] for first, last in pairwise(cu_seqlens_q)]
    output = np.zeros((len(queries), len(cu_seqlens) - 1))
    for (row, tokens), (column, (first, last)) in product(enumerate(queries), enumerate(pairwise(cu_seqlens))):
        for token in tokens:
            products = [math.fsum(map(operator.mul, token, other)) for other in document[first:last]]
            output[row, column] += max(products, key=lambda product: (math.isnan(product), product), default=0)
    return output


def lstm(input, weight, cu_seqlens):
    directions, units, hidden = weight.shape
    output = np.zeros((len(input), directions * hidden))
    for direction, (first, last) in product(range(directions), pairwise(cu_seqlens)):
        state, cell, places = np.zeros(hidden), np.zeros(hidden), range(first, last)
        for place in places if direction == 0 else reversed(places):
            known = input[place, direction * units :][:units]
            known = [start + _dot(row, state) for start, row in zip(known, weight[direction], strict=True)]
            i, f, g, o = np.reshape(known, (4, hidden))
            cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            state = np.tanh(cell) / (1 + np.exp(-o))
            output[place, direction * hidden :][:hidden] = state
    return output


def pooling(input, cu_seqlens, mode="mean", skipped=0):
    output = np.zeros((len(cu_seqlens) - 1, input.shape[1]))
    for sequence, (start, stop) in enumerate(pairwise(cu_seqlens)):
        tokens = [(place, row) for place, row in enumerate(input[start:stop], start=1) if place > skipped]
        if not tokens:
            continue
        for column in range(input.shape[1]):
            values = [float(row[column]) for _, row in tokens]
            places = [place for place, _ in tokens]
            output[sequence, column] = {
                "cls": lambda v, p: v[0],
                "max": lambda v, p: max(v) if not any(map(math.isnan, v)) else math.nan,
                "mean": lambda v, p: math.fsum(v) / len(v),
                "mean_sqrt_len_tokens": lambda v, p: math.fsum(v) / math.sqrt(len(v)),
                "weightedmean": lambda v, p: math.fsum(map(operator.mul, v, p)) / sum(p),
                "lasttoken": lambda v, p: v[-1],
            }[mode](values, places)
    return output


def cross_entropy(input, target, ignore_index=-100):
    return np.array(
        [
            0.0 if index == ignore_index else _log_sum_exp(row) - row[index]
            for row, index in zip(input, target, strict=True)
        ],
        np.float64,
    )


def _highest_and_log(scores):
    """The highest score and the logarithm of the sum of exponentials beside it."""
    peak = max(scores, default=-math.inf)
    return (peak, math.log(math.fsum(math.exp(it - peak) for it in scores))) if peak > -math.inf else (-math.inf, 0)


def _added(mask):
    """Return the term that a boolean or additive mask entry adds to a score."""
    return (0.0 if mask else -math.inf) if isinstance(mask, np.bool_) else mask


def attention(
    query,
    key,
    value,
    *,
    cu_seqlens,
    cu_seqlens_k,
    scale,
    attn_mask=None,
    bias=None,
    is_causal=False,
    window=None,
    dropout_p=0.0,
    dropout_seed=0,
    **relative,
):
    """Outputs by name, of packed arrays (tokens, heads, head_dim); the fields of RelativePositions as arguments."""
    starts, starts_k = cu_seqlens.tolist(), cu_seqlens_k.tolist()
    lengths, lengths_k = ([b - a for a, b in pairwise(some)] for some in (starts, starts_k))
    shape = (len(lengths), query.shape[1], max(lengths, default=0), max(lengths_k, default=0))
    attn_mask, bias = (None if array is None else np.broadcast_to(array, shape) for array in (attn_mask, bias))
    left, right = (math.inf, math.inf) if window is None else window
    output, lse = np.zeros(query.shape), np.zeros((query.shape[1], len(query), 2))
    probs, components = np.zeros(shape), [np.zeros(shape) for _ in range(3)]
    for s, h, i in np.ndindex(shape[:3]):
        if i >= lengths[s]:
            continue
        scores, q, h_k, at = [], starts[s] + i, h * key.shape[1] // query.shape[1], i + lengths_k[s] - lengths[s]
        for j in range(lengths_k[s]):
            k = starts_k[s] + j
            parts = [
                _dot(query[q, h], key[k, h_k]),
                *_relative_parts(query[q, h], key[k, h_k], q, k, h, at - j, relative),
            ]
            for component, part in zip(components, parts, strict=False):
                component[s, h, i, j] = scale * part
            added = 0.0 if bias is None else bias[s, h, i, j]
            added += 0.0 if attn_mask is None else _added(attn_mask[s, h, i, j])
            if "position_bias" in relative:
                added += relative["position_bias"][_row(at - j, relative["distance_rows"]), h]
            hidden = (is_causal and j > i) or not at - left <= j <= at + right
            scores.append(-math.inf if hidden else scale * math.fsum(parts) + added)
        row = _softmax_line(scores)
        probs[s, h, i, : len(row)] = row
        lse[h, q] = _highest_and_log(scores)
        bits = random_bits(dropout_seed, np.array([q * query.shape[1] + h]), len(row))[0]
        for j, probability in enumerate(row):
            kept = probability / (1 - dropout_p) if bits[j] >= dropout_p * 2**32 else 0
            output[q, h] += kept * value[starts_k[s] + j, h_k]
    names = ("content", "content to position", "position to content")
    return {"output": output, "lse": lse, "probabilities": probs, **dict(zip(names, components, strict=True))}


def _row(distance, distance_rows):
    middle = len(distance_rows) // 2
    return distance_rows[min(max(distance, -middle), middle) + middle]


def _relative_parts(query, key, q, k, h, distance, relative):
    """Return the terms of relative position and segments, added to the product of query and key before the scale."""
    parts = [0.0, 0.0, 0.0]
    if "position_key" in relative:
        asking = relative["query_for_position"][q, h] if "query_for_position" in relative else query
        parts[0] = _dot(asking, relative["position_key"][_row(distance, relative["distance_rows"]), h])
    if "position_query" in relative:
        parts[1] = _dot(key, relative["position_query"][_row(distance, relative["distance_rows"]), h])
    if "segment_scores" in relative:
        parts[2] = relative["segment_scores"][q, h, int(relative["segment_ids"][q] != relative["segment_ids_k"][k])]
    return parts
