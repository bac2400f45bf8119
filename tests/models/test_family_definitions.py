"""Families that transformers lacks, against their published definitions in PyTorch: values and gradients in float64.

BERT Hash, nomic-embed-text-v2 (its mixtures) and Jina BERT v2 (its code model too) by their authors' code, NeoBERT by
arXiv:2502.19587. Each text passes alone, without padding; only Jina BERT's definition sees where its tokens stand.
"""

import numpy as np
import pytest

from bertcore import AutoModel, vjp
from tests.models.family_table import FAMILIES

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]


def layer_norm(states, weights, name, eps):
    return F.layer_norm(states, states.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def rms_norm(states, weight, eps):
    return states / torch.sqrt(states.square().mean(-1, keepdim=True) + eps) * weight


def linear(states, weights, name):
    return F.linear(states, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def rotated(states, theta, pairs):
    """(tokens, heads, width) rotated by position: neighbours (`pairs`), or the first half with the second."""
    tokens, _, width = states.shape
    steps = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * theta**-steps
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    first, second = (states[..., ::2], states[..., 1::2]) if pairs else states.chunk(2, -1)
    turned = torch.complex(first, second) * turn
    if pairs:
        return torch.stack([turned.real, turned.imag], -1).flatten(-2)
    return torch.cat([turned.real, turned.imag], -1)


def attention(query, key, value, bias=0.0):
    """(tokens, heads, width) each."""
    scores = torch.einsum("qhw,khw->hqk", query, key) / query.shape[-1] ** 0.5 + bias
    return torch.einsum("hqk,khw->qhw", scores.softmax(-1), value).flatten(1)


def neobert(config, weights, ids, types, places):
    states, heads = weights["encoder.weight"][ids], config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        own = {name.split(".", 2)[2]: part for name, part in weights.items() if f"encoder.{layer}." in name}
        source = rms_norm(states, own["attention_norm.weight"], config["norm_eps"])
        query, key, value = linear(source, own, "qkv").unflatten(-1, (heads, -1)).chunk(3, -1)
        mixed = attention(rotated(query, 1e4, True), rotated(key, 1e4, True), value)
        states = states + linear(mixed, own, "wo")
        gate, up = linear(rms_norm(states, own["ffn_norm.weight"], config["norm_eps"]), own, "ffn.w12").chunk(2, -1)
        states = states + linear(F.silu(gate) * up, own, "ffn.w3")
    return rms_norm(states, weights["layer_norm.weight"], config["norm_eps"])


def bert_hash(config, weights, ids, types, places):
    words, eps = "embeddings.word_embeddings", config["layer_norm_eps"]
    states = linear(weights[f"{words}.embeddings.weight"][ids], weights, f"{words}.projections")
    states = states + weights["embeddings.position_embeddings.weight"][: len(ids)]
    states = states + weights["embeddings.token_type_embeddings.weight"][types]
    states = layer_norm(states, weights, "embeddings.LayerNorm", eps)
    for layer in range(config["num_hidden_layers"]):
        own = {name.split(".", 3)[3]: part for name, part in weights.items() if f"encoder.layer.{layer}." in name}
        parts = [linear(states, own, f"attention.self.{kind}") for kind in ("query", "key", "value")]
        mixed = attention(*(part.unflatten(-1, (config["num_attention_heads"], -1)) for part in parts))
        states = layer_norm(
            states + linear(mixed, own, "attention.output.dense"), own, "attention.output.LayerNorm", eps
        )
        inner = F.gelu(linear(states, own, "intermediate.dense"))
        states = layer_norm(states + linear(inner, own, "output.dense"), own, "output.LayerNorm", eps)
    return states


def slopes(heads):
    """Press et al. 2021, and what they say of other numbers of heads (their issue 5)."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]
    below = 2 ** int(np.log2(heads))
    return slopes(below) + slopes(2 * below)[::2][: heads - below]


def jina_bert(config, weights, ids, types, places):
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    is_code = "qk-post-norm" in config["auto_map"]["AutoModel"]
    bias = -torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None] * (places[:, None] - places).abs()
    act = {"geglu": F.gelu, "reglu": F.relu}[config["feed_forward_type"]]
    words, kinds = (weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    states = layer_norm(words[ids] + kinds[types], weights, "embeddings.LayerNorm", eps)
    for layer in range(config["num_hidden_layers"]):
        own = {name.split(".", 3)[3]: part for name, part in weights.items() if f"encoder.layer.{layer}." in name}
        parts = {name: linear(states, own, f"attention.self.{name}") for name in ("query", "key", "value")}
        if is_code:
            for name in ("query", "key"):
                parts[name] = layer_norm(parts[name], own, f"attention.self.layer_norm_{name[0]}", eps)
        mixed = attention(*(part.unflatten(-1, (heads, -1)) for part in parts.values()), bias)
        attended = layer_norm(
            linear(mixed, own, "attention.output.dense") + states, own, "attention.output.LayerNorm", eps
        )
        if is_code:
            attended = layer_norm(states + attended, own, "layer_norm_1", eps)
            up, gate = linear(attended, own, "mlp.up_gated_layer").chunk(2, -1)
            states = layer_norm(attended + linear(up * act(gate), own, "mlp.down_layer"), own, "layer_norm_2", eps)
        else:
            gate, up = linear(attended, own, "mlp.gated_layers").chunk(2, -1)
            states = layer_norm(attended + linear(act(gate) * up, own, "mlp.wo"), own, "mlp.layernorm", eps)
    return states


def nomic_mixture(config, own, states):
    """Every expert computes every token; unchosen ones get the weight 0."""
    probabilities = linear(states, own, "mlp.router.layer").softmax(-1)
    best, chosen = probabilities.topk(config["moe_top_k"], -1)
    factors = torch.zeros_like(probabilities).scatter(1, chosen, best)
    expand, contract = (
        own[f"mlp.experts.mlp.{name}"].unflatten(0, (config["num_experts"], -1)) for name in ("w1", "w2")
    )
    outputs = torch.einsum("etf,efh->teh", F.gelu(torch.einsum("th,efh->etf", states, expand)), contract)
    return (factors[..., None] * outputs).sum(1) + own["mlp.experts.bias"]


def nomic(config, weights, ids, types, places):
    eps = config["layer_norm_epsilon"]
    states = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    states = layer_norm(states, weights, "emb_ln", eps)
    for layer in range(config["n_layer"]):
        own = {name.split(".", 3)[3]: part for name, part in weights.items() if f"encoder.layers.{layer}." in name}
        query, key, value = linear(states, own, "attn.Wqkv").unflatten(-1, (3, config["n_head"], -1)).unbind(1)
        theta = config["rotary_emb_base"]
        mixed = attention(rotated(query, theta, False), rotated(key, theta, False), value)
        states = layer_norm(states + linear(mixed, own, "attn.out_proj"), own, "norm1", eps)
        if layer % config["moe_every_n_layers"] == 1:
            mixed = nomic_mixture(config, own, states)
        else:
            mixed = linear(F.gelu(linear(states, own, "mlp.fc1")), own, "mlp.fc2")
        states = layer_norm(states + mixed, own, "norm2", eps)
    return states


def drawn_config(family, rng):
    """Return a random config of a family, with its published keys."""
    heads, width, layers = int(rng.integers(1, 5)), 2 * int(rng.integers(1, 9)), int(rng.integers(1, 4))
    inner, vocabulary, eps = int(rng.integers(9, 60)), int(rng.integers(20, 70)), float(10 ** -rng.uniform(2, 6))
    common = {"vocab_size": vocabulary, "hidden_size": heads * width, "num_attention_heads": heads,
              "num_hidden_layers": layers, "intermediate_size": inner}  # fmt: skip
    if family == "neobert":
        return common | {"model_type": "neobert", "max_length": 32, "norm_eps": eps, "pad_token_id": 0}
    if family == "bert_hash":
        more = {"projections": int(rng.integers(1, 20)), "max_position_embeddings": 32, "type_vocab_size": 2}
        return common | more | {"model_type": "bert_hash", "layer_norm_eps": eps}
    if family.startswith("jina"):
        heads = int(rng.choice([1, 3, 4, 12]))
        more = {"hidden_size": heads * width, "num_attention_heads": heads, "max_position_embeddings": 8}
        gate = str(rng.choice(["geglu", "reglu"]))
        return FAMILIES[family].config | common | more | {"layer_norm_eps": eps, "feed_forward_type": gate}
    theta = float(rng.uniform(10, 1e5))
    experts, biases = int(rng.integers(1, 9)), ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
    return {
        "model_type": "nomic_bert", "vocab_size": vocabulary, "n_embd": heads * width, "n_head": heads,
        "n_layer": layers + 1, "n_inner": inner, "n_positions": 32, "activation_function": "gelu",
        "type_vocab_size": 1, "layer_norm_epsilon": eps, "rotary_emb_base": theta, "num_experts": experts,
        "moe_every_n_layers": int(rng.integers(2, 4)), "moe_top_k": int(rng.integers(1, experts + 1)),
        **{key: bool(rng.integers(0, 2)) for key in biases},
    }  # fmt: skip


DEFINITIONS = {"neobert": neobert, "bert_hash": bert_hash, "nomic_v2": nomic}
DEFINITIONS |= {"jina_bert": jina_bert, "jina_bert_code": jina_bert}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("family", DEFINITIONS)
def test_a_family_is_its_definition(family, seed):
    rng = np.random.default_rng([seed, len(family)])
    config = drawn_config(family, rng)
    more = {} if family in ("neobert", "nomic_v2") else {"add_pooling_layer": False}
    model = AutoModel.from_config(config, dtype="float64", **more)
    state = {name: rng.normal(0.5 if "norm" in name.lower() else 0, 0.6, shape).astype("f4")
             for name, shape in model.expected_tensors().items()}  # fmt: skip
    model.load_state_dict(state)
    weights = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in state.items()}
    lengths = rng.integers(1, 32, 3)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(int)
    if family.startswith("jina"):  # holes, which count as places
        mask *= rng.random(mask.shape) < 0.8
    ids = rng.integers(1, config["vocab_size"], mask.shape) * mask
    types = rng.integers(0, 2 if more else 1, mask.shape)
    given = {"token_type_ids": types} if more else {}
    found, pullback = vjp(model)(input_ids=ids, attention_mask=mask, **given)
    grad = rng.normal(size=found.last_hidden_state.shape)
    grads = pullback({"last_hidden_state": grad})
    loss = torch.zeros((), requires_grad=True)
    for row, real in enumerate(mask > 0):
        inputs = [torch.from_numpy(array) for array in (ids[row, real], types[row, real], np.flatnonzero(real))]
        expected = DEFINITIONS[family](config, weights, *inputs)
        np.testing.assert_allclose(found.last_hidden_state[row, real], expected.detach(), rtol=1e-9, atol=1e-9)
        loss = loss + (expected * torch.from_numpy(grad[row, real])).sum()
    loss.backward()
    assert set(grads) == set(weights)
    for name, weight in weights.items():
        expected = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
        np.testing.assert_allclose(
            grads[name], expected, rtol=1e-7, atol=1e-8 * max(1, np.abs(expected).max()), err_msg=name
        )
