"""Naive oracles: the operations once more, one number at a time in Python's floats, to test reference.py against.

They share nothing with the code under test: no NumPy arithmetic, no vectorisation, `math.fsum` for every sum. All take
and return float64 arrays, and are meant for small ones.
"""

import math

import numpy as np


def softmax(x, dim):
    return _along(_softmax_line, x, dim)


def _along(function, x, dim):
    return np.apply_along_axis(function, dim, x) if x.size else np.zeros(x.shape)


def _softmax_line(line):
    log_total = _log_sum_exp(line)
    if log_total == -math.inf:
        return [0.0] * len(line)
    return [math.exp(value - log_total) for value in line]


def _log_sum_exp(values):
    if any(math.isnan(value) or value == math.inf for value in values):
        return math.nan
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(value - peak) for value in values))


def layer_norm(x, weight, bias, eps, residual):
    def line(values):
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return [(value - mean) / math.sqrt(variance + eps) for value in values]

    normalised = _along(line, x if residual is None else x + residual, -1)
    return normalised * (1 if weight is None else weight) + (0 if bias is None else bias)


def rms_norm(x, weight, eps, residual):
    def line(values):
        square = math.fsum(value**2 for value in values) / len(values)
        return [value / math.sqrt(square + eps) for value in values]

    normalised = _along(line, x if residual is None else x + residual, -1)
    return normalised * (1 if weight is None else weight)


def activation(x, name):
    return np.array([ACTIVATIONS[name](float(value)) for value in x.flat], np.float64).reshape(x.shape)


ACTIVATIONS = {
    "relu": lambda x: x if x > 0 else 0.0,
    "tanh": math.tanh,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def linear(x, weight, bias, name, residual):
    output = np.array([[_dot(row, column) for column in weight] for row in x], np.float64).reshape(len(x), len(weight))
    if bias is not None:
        output = output + bias
    if name is not None:
        output = activation(output, name)
    return output if residual is None else output + residual


def _dot(row, column):
    return math.fsum(a * b for a, b in zip(row, column, strict=True))


def rotary(x, cos, sin, positions, interleaved):
    """Each pair as a complex number, times that of its angle."""
    turned, half = x.copy(), cos.shape[1]
    for *at, pair in np.ndindex(*x.shape[:-1], half):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, half + pair)
        place = positions[at[0]], pair
        number = complex(x[*at, first], x[*at, second]) * complex(cos[place], sin[place])
        turned[*at, first], turned[*at, second] = number.real, number.imag
    return turned


def embedding(ids, weight):
    return np.array([weight[int(index)] for index in ids.flat], np.float64).reshape(*ids.shape, weight.shape[1])


def embedding_backward(grad, ids, num_embeddings):
    grad_weight = np.zeros((num_embeddings, grad.shape[-1]))
    for position in np.ndindex(ids.shape):
        grad_weight[ids[position]] += grad[position]
    return grad_weight


def cross_entropy(x, target, ignore_index):
    lse = np.array([_log_sum_exp(row) for row in x])
    losses = [
        0.0 if index == ignore_index else total - row[index] for row, index, total in zip(x, target, lse, strict=True)
    ]
    return np.array(losses), lse


def _highest_and_log(scores):
    """The highest score and the logarithm of the sum of exponentials beside it."""
    peak = max(scores, default=-math.inf)
    return (peak, math.log(math.fsum(math.exp(it - peak) for it in scores))) if peak > -math.inf else (-math.inf, 0)


def _added(mask):
    """What a boolean or additive mask entry adds to a score."""
    return (0.0 if mask else -math.inf) if isinstance(mask, np.bool_) else mask


def attention(query, key, value, lengths, lengths_k, attn_mask, bias, is_causal, scale):
    """(output, lse, probabilities) of packed (tokens, heads, head_dim) arrays; masks in full, not to be broadcast."""
    tokens, heads, _ = query.shape
    output, lse = np.zeros(query.shape), np.zeros((heads, tokens, 2))
    probs = np.zeros((len(lengths), heads, max(lengths, default=0), max(lengths_k, default=0)))
    starts, starts_k = np.cumsum([0, *lengths]), np.cumsum([0, *lengths_k])
    for s, h, i in np.ndindex(probs.shape[:3]):
        if i >= lengths[s]:
            continue
        scores = []
        for j in range(lengths_k[s]):
            score = scale * _dot(query[starts[s] + i, h], key[starts_k[s] + j, h])
            score += 0 if bias is None else bias[s, h, i, j]
            score += 0 if attn_mask is None else _added(attn_mask[s, h, i, j])
            scores.append(-math.inf if is_causal and j > i else score)
        row = _softmax_line(scores)
        probs[s, h, i, : len(row)] = row
        lse[h, starts[s] + i] = _highest_and_log(scores)
        for j, probability in enumerate(row):
            output[starts[s] + i, h] += probability * value[starts_k[s] + j, h]
    return output, lse, probs


def relative_attention(arrays, distance_rows, segments, lengths, lengths_k, attn_mask, scale):
    """(output, lse, probabilities, components) of packed arrays by the names of the arguments, some of them absent.

    `segments` is (ids of queries, ids of keys, scores) or None; attn_mask in full, not to be broadcast.
    """
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    tokens, heads, _ = query.shape
    output, lse = np.zeros(query.shape), np.zeros((heads, tokens, 2))
    shape = (len(lengths), heads, max(lengths, default=0), max(lengths_k, default=0))
    probs, components = np.zeros(shape), [np.zeros(shape) for _ in range(3)]
    starts, starts_k, middle = np.cumsum([0, *lengths]), np.cumsum([0, *lengths_k]), len(distance_rows) // 2
    for s, h, i in np.ndindex(shape[:3]):
        if i >= lengths[s]:
            continue
        scores, q = [], starts[s] + i
        for j in range(lengths_k[s]):
            k, distance = starts_k[s] + j, i + lengths_k[s] - lengths[s] - j
            row = distance_rows[min(max(distance, -middle), middle) + middle]
            parts = [_dot(query[q, h], key[k, h]), 0.0, 0.0]
            if "position_key" in arrays:
                parts[1] = _dot(arrays.get("query_for_position", query)[q, h], arrays["position_key"][row, h])
            if "position_query" in arrays:
                parts[2] = _dot(key[k, h], arrays["position_query"][row, h])
            for component, part in zip(components, parts, strict=True):
                component[s, h, i, j] = scale * part
            if segments is not None:
                parts.append(segments[2][q, h, int(segments[0][q] != segments[1][k])])
            added = 0.0 if attn_mask is None else _added(attn_mask[s, h, i, j])
            scores.append(scale * math.fsum(parts) + added)
        row = _softmax_line(scores)
        probs[s, h, i, : len(row)] = row
        lse[h, q] = _highest_and_log(scores)
        for j, probability in enumerate(row):
            output[q, h] += probability * value[starts_k[s] + j, h]
    return output, lse, probs, components
