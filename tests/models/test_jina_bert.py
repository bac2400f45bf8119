"""Jina BERT v2 and its code model against their definition in PyTorch, in float64: transformers does not have them."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForTokenClassification, use_backend, value_and_grad
from tests.tiny_families import drawn_anew

CODE = {"text": "jinaai/jina-bert-implementation", "code": "jinaai/jina-bert-v2-qk-post-norm"}
TINY = {
    "model_type": "bert", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2,
    "intermediate_size": 20, "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "relu",
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "layer_norm_eps": 1e-3,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
CASES = {
    "three heads": ({}, [11, 1, 7]),
    "one head of 39": ({"hidden_size": 39, "num_attention_heads": 1}, [5, 3, 13]),
    "twelve heads": ({"num_attention_heads": 12}, [8, 2]),
    "relu": ({"feed_forward_type": "reglu"}, [3, 9]),
    "longer than the config says": ({"max_position_embeddings": 8}, [70, 5]),
}


def config_of(kind, **changes):
    return TINY | {"auto_map": {"AutoModel": f"{CODE[kind]}--modeling_bert.JinaBertModel"}} | changes


def slopes(heads):
    """Press et al. 2021, and what they say of other numbers of heads (their issue 5)."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]
    below = 2 ** int(np.log2(heads))
    return slopes(below) + slopes(2 * below)[::2][: heads - below]


def oracle(config, kind, tensors, ids, mask, types):
    """(last hidden state, its parameters) in float64, all sequences padded."""
    import torch
    from torch.nn import functional

    held = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in tensors.items()}
    heads, width = config["num_attention_heads"], config["hidden_size"]

    def linear(x, name):
        return functional.linear(x, held[f"{name}.weight"], held.get(f"{name}.bias"))

    def norm(x, name):
        return functional.layer_norm(
            x, (width,), held[f"{name}.weight"], held[f"{name}.bias"], config["layer_norm_eps"]
        )

    def split(x):
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    words, kinds = (held[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    x = norm(words[ids] + kinds[types], "embeddings.LayerNorm")
    places = torch.arange(ids.shape[1])
    bias = -torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None] * (places[:, None] - places).abs()
    bias = bias + torch.where(torch.tensor(mask)[:, None, None] > 0, 0.0, -1e30)
    act = {"geglu": functional.gelu, "reglu": functional.relu}[config["feed_forward_type"]]
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        query, key, value = (linear(x, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        if kind == "code":
            query, key = (norm(y, f"{layer}.attention.self.layer_norm_{n}") for y, n in ((query, "q"), (key, "k")))
        scores = split(query) @ split(key).transpose(2, 3) / (width // heads) ** 0.5 + bias
        mixed = (scores.softmax(-1) @ split(value)).transpose(1, 2).flatten(2)
        attended = norm(linear(mixed, f"{layer}.attention.output.dense") + x, f"{layer}.attention.output.LayerNorm")
        if kind == "code":
            attended = norm(x + attended, f"{layer}.layer_norm_1")
            up, gate = linear(attended, f"{layer}.mlp.up_gated_layer").chunk(2, -1)
            x = norm(attended + linear(up * act(gate), f"{layer}.mlp.down_layer"), f"{layer}.layer_norm_2")
        else:
            gate, up = linear(attended, f"{layer}.mlp.gated_layers").chunk(2, -1)
            x = norm(attended + linear(act(gate) * up, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm")
    return x, held


def batch_of(lengths, *, left=False, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    mask = (mask[:, ::-1] if left else mask).astype(np.int64)
    return rng.integers(1, 40, mask.shape), mask, rng.integers(0, 2, mask.shape)


def check(kind, config, batch):
    """Hidden state and gradients of a token classifier beside the definition's."""
    import torch

    model = drawn_anew(AutoModelForTokenClassification.from_config(config))
    ids, mask, types = batch
    labels = np.where(mask, ids % 2, -100)
    out, grads = value_and_grad(model)(ids, mask, types, labels=labels)
    tensors = {name.removeprefix("bert."): array for name, array in model.state_dict().items()}
    hidden, held = oracle(config, kind, tensors, ids, mask, types)
    logits = torch.nn.functional.linear(hidden, held["classifier.weight"], held["classifier.bias"])
    loss = torch.nn.functional.cross_entropy(logits[mask > 0], torch.tensor(labels[mask > 0]))
    loss.backward()
    expected = logits.detach().numpy() * mask[..., None]
    np.testing.assert_allclose(out.logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-5)
    largest = max(np.abs(array).max() for array in grads.values())
    for name, array in grads.items():
        truth = held[name.removeprefix("bert.")].grad.numpy()
        if name.endswith("word_embeddings.weight"):
            truth[0] = 0  # padding learns nothing
        np.testing.assert_allclose(array, truth, rtol=0, atol=1e-4 * np.abs(truth).max() + 1e-6 * largest, err_msg=name)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", CODE)
def test_outputs_and_gradients(cpu_backend, kind, name):
    changes, lengths = CASES[name]
    check(kind, config_of(kind, **changes), batch_of(lengths))


@pytest.mark.parity
@pytest.mark.parametrize("kind", CODE)
def test_left_padding_and_holes(cpu_backend, kind):
    batch = batch_of([11, 2, 6], left=True)
    batch[1][0, [3, 4, 8]] = 0
    check(kind, config_of(kind), batch)


@pytest.mark.parametrize("kind", CODE)
def test_programs_serve_other_lengths_of_as_many_tokens(kind):
    model = drawn_anew(AutoModel.from_config(config_of(kind)))
    ids = np.random.default_rng(1).integers(1, 40, (2, 15))
    for lengths in ([8, 8], [8, 8], [8, 8], [15, 1], [3, 13]):
        mask = np.arange(15) < np.array(lengths)[:, None]
        with use_backend("numpy"):
            truth = model(ids, mask).last_hidden_state
        with use_backend("numba"):
            np.testing.assert_allclose(model(ids, mask).last_hidden_state, truth, atol=1e-5 * np.abs(truth).max())


def test_sizes_of_the_published_model():
    sizes = {"vocab_size": 30528, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}
    base = config_of("text", intermediate_size=3072, max_position_embeddings=8192, **sizes)
    assert AutoModel(base).num_parameters() == 137_368_320
    assert AutoModel(base).spec.longest_sequence == 8192
