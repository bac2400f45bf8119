"""Transformer-XL in plain loops and float64, from its paper (Dai et al. 2019, arXiv:1901.02860, sections 3.2 and 3.3)
and those of the adaptive embeddings (Baevski and Auli 2018, arXiv:1809.10853) and softmax (Grave et al. 2016,
arXiv:1609.04309). One sequence at a time; parameters by the names of a checkpoint.
"""

from itertools import pairwise

import numpy as np


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def layer_norm(row, weight, bias, eps):
    return (row - row.mean()) / np.sqrt(row.var() + eps) * weight + bias


def encoding(distance, width):
    """R of section 3.3: sines, then cosines, of the distance."""
    angles = [distance / 10000 ** (2 * pair / width) for pair in range(width // 2)]
    return np.concatenate([np.sin(angles), np.cos(angles)])


def bounds(config):
    ends = [0, *config["cutoffs"], config["vocab_size"]]
    return list(pairwise(ends))


def group_of(word, config):
    return next(index for index, (first, end) in enumerate(bounds(config)) if first <= word < end)


def embedding(word, parameters, config):
    """The word's vector, projected, times sqrt(d_model)."""
    group = group_of(word, config) if config["div_val"] > 1 else 0
    first = bounds(config)[group][0] if config["div_val"] > 1 else 0
    vector = parameters[f"transformer.word_emb.emb_layers.{group}.weight"][word - first]
    projection = parameters.get(f"transformer.word_emb.emb_projs.{group}")
    if projection is not None:
        vector = projection @ vector
    return vector * np.sqrt(config["d_model"])


def attention(hidden, memory, parameters, prefix, config):
    """Relative attention of each row to the memory and to the rows up to itself; (output, probabilities)."""
    heads, size, width = config["n_head"], config["d_head"], config["d_model"]
    weight = {name: parameters[f"{prefix}.{name}.weight"] for name in ("qkv_net", "r_net", "o_net")}
    shared = "transformer" if not config["untie_r"] else prefix
    content_bias, position_bias = (parameters[f"{shared}.{name}"] for name in ("r_w_bias", "r_r_bias"))
    norm = [parameters[f"{prefix}.layer_norm.{end}"] for end in ("weight", "bias")] + [config["layer_norm_epsilon"]]
    rows = list(memory) + list(hidden)
    if config["pre_lnorm"]:
        rows = [layer_norm(row, *norm) for row in rows]
    queries, keys, values = (
        np.array([weight["qkv_net"] @ row for row in rows]).reshape(-1, 3, heads, size).swapaxes(0, 1)
    )
    output, probabilities = [], np.zeros((heads, len(hidden), len(rows)))
    for number, residual in enumerate(hidden):
        place, attended = len(memory) + number, []
        for head in range(heads):
            scores = np.full(len(rows), -np.inf)
            for key in range(place + 1):
                distance = place - key
                if config["same_length"] and distance >= config["mem_len"]:
                    continue
                if config["clamp_len"] > 0:
                    distance = min(distance, config["clamp_len"])
                position = (weight["r_net"] @ encoding(distance, width)).reshape(heads, size)[head]
                content = (queries[place, head] + content_bias[head]) @ keys[key, head]
                scores[key] = (content + (queries[place, head] + position_bias[head]) @ position) / np.sqrt(size)
            probabilities[head, number] = softmax(scores)
            attended.append(probabilities[head, number] @ values[:, head])
        mixed = residual + weight["o_net"] @ np.concatenate(attended)
        output.append(mixed if config["pre_lnorm"] else layer_norm(mixed, *norm))
    return np.array(output), probabilities


def feed_forward(row, parameters, prefix, config):
    norm = [parameters[f"{prefix}.layer_norm.{end}"] for end in ("weight", "bias")] + [config["layer_norm_epsilon"]]
    inner = layer_norm(row, *norm) if config["pre_lnorm"] else row
    inner = parameters[f"{prefix}.CoreNet.0.weight"] @ inner + parameters[f"{prefix}.CoreNet.0.bias"]
    outer = parameters[f"{prefix}.CoreNet.3.weight"] @ np.maximum(inner, 0) + parameters[f"{prefix}.CoreNet.3.bias"]
    return row + outer if config["pre_lnorm"] else layer_norm(row + outer, *norm)


def encode(words, memories, parameters, config):
    """(hidden states: the embeddings and each layer's, probabilities of each layer, the next memories)."""
    hidden = np.array([embedding(word, parameters, config) for word in words])
    states, probabilities, following = [hidden], [], []
    for layer in range(config["n_layer"]):
        memory = memories[layer] if memories is not None else hidden[:0]
        following.append(np.concatenate([memory, hidden])[-config["mem_len"] :])
        prefix = f"transformer.layers.{layer}"
        hidden, seen = attention(hidden, memory, parameters, f"{prefix}.dec_attn", config)
        hidden = np.array([feed_forward(row, parameters, f"{prefix}.pos_ff", config) for row in hidden])
        states.append(hidden)
        probabilities.append(seen)
    return states, probabilities, following


def log_probabilities(row, parameters, config):
    """Of every word after a hidden state: a softmax of the first group's words and of the other groups, and within
    each of these one of its words."""
    groups, found = bounds(config), np.empty(config["vocab_size"])
    first_scores = None
    for index, (first, end) in enumerate(groups):
        projection = projection_of(index, parameters, config)
        features = row if projection is None else projection.T @ row
        own = index if config["div_val"] > 1 else 0
        rows = slice(None) if config["div_val"] > 1 else slice(first, end)
        scores = output_weight(own, parameters)[rows] @ features + parameters[f"crit.out_layers.{own}.bias"][rows]
        if index == 0:
            if len(groups) > 1:
                of_groups = parameters["crit.cluster_weight"] @ features + parameters["crit.cluster_bias"]
                scores = np.concatenate([scores, of_groups])
            first_scores = np.log(softmax(scores))
            found[first:end] = first_scores[: end - first]
        else:
            found[first:end] = first_scores[groups[0][1] + index - 1] + np.log(softmax(scores))
    return found


def projection_of(index, parameters, config):
    tied = config["proj_share_all_but_first"] and index > 0
    group = index if config["div_val"] > 1 else 0
    return parameters.get(f"transformer.word_emb.emb_projs.{group}" if tied else f"crit.out_projs.{index}")


def output_weight(index, parameters):
    tied = parameters[f"transformer.word_emb.emb_layers.{index}.weight"]
    return parameters.get(f"crit.out_layers.{index}.weight", tied)


def loss(words, labels, memories, parameters, config):
    """The mean of -log(probability) of each label given the words before it; -100 is none."""
    hidden, losses = encode(words, memories, parameters, config)[0][-1], []
    for row, label in zip(hidden[:-1], labels[1:], strict=True):
        if label != -100:
            losses.append(-log_probabilities(row, parameters, config)[label])
    return losses
