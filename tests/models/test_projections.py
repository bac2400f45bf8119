"""Queries, keys and values as outputs of a model."""

import numpy as np
import pytest

from bertcore import AutoModel, vjp
from tests.slopes import assert_slope
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, tiny_config
from tests.tolerances import assert_same_arrays

MASK = np.array([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6])
IDS = np.random.default_rng(0).integers(6, 40, MASK.shape)


pytestmark = pytest.mark.usefixtures("on_numpy")


def random_model(name):
    return drawn_anew(AutoModel.from_config(tiny_config(name), dtype="float64"))


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "albert-base-v2", "modernbert-base", "eurobert-210m", "mobilebert-uncased", "gpt2"]
)
def test_queries_and_keys_are_what_attention_is_made_of(name):
    """After rotary, of grouped heads, within a window: the probabilities are their softmax where there are any."""
    model = random_model(name)
    out = model(IDS, MASK, output_projections=True, output_attentions=True)
    assert len(out.projections) == model.spec.num_layers
    for layer, (query, key, value), expected in zip(model.spec.layers, out.projections, out.attentions, strict=True):
        assert query.shape == (*IDS.shape, layer.attention_size)
        assert key.shape == value.shape == (*IDS.shape, layer.key_value_size)
        assert not query[1, 4:].any() and not value[1, 4:].any()
        query, key = (array.reshape(*IDS.shape, -1, layer.head_size).swapaxes(1, 2) for array in (query, key))
        key = key.repeat(query.shape[1] // key.shape[1], axis=1)
        scores = query @ key.swapaxes(2, 3) * (layer.scale or layer.head_size**-0.5)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True)) * (expected > 0)
        sums = powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(np.divide(powers, sums, where=sums > 0, out=powers), expected, atol=1e-12)


def test_values_are_the_outputs_of_their_map():
    model = AutoModel.from_config(CONFIG, dtype="float64")
    out, names = model(IDS, MASK, output_projections=True, output_hidden_states=True), model.state_dict()
    prefix = "encoder.layer.1.attention.self.value"
    expected = out.hidden_states[1] @ names[f"{prefix}.weight"].T + names[f"{prefix}.bias"]
    np.testing.assert_allclose(out.projections[1][2], expected * MASK[:, :, None], atol=1e-12)


def test_those_of_some_layers_alone():
    model = AutoModel.from_config({**CONFIG, "num_hidden_layers": 3}, dtype="float64")
    found = model(IDS, MASK, output_projections=[1, 3]).projections
    every = model(IDS, MASK, output_projections=True).projections
    assert found[1] is None
    for layer in (0, 2):
        assert_same_arrays(found[layer], every[layer])
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=f"output_projections has {wrong}, expected numbers of layers from 1 to 3"):
            model(IDS, output_projections=[wrong])
    for wrong in (2, None, "12"):
        with pytest.raises(TypeError, match=f"output_projections is {wrong!r}, expected True, False or numbers"):
            model(IDS, output_projections=wrong)


@pytest.mark.parametrize("is_run_again", [False, True])
def test_gradients_flow_through_them(is_run_again):
    model = AutoModel.from_config(CONFIG, dtype="float64")
    if is_run_again:
        model.gradient_checkpointing_enable()
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(2, *IDS.shape, 39))
    out, pullback = vjp(model)(IDS, MASK, output_projections=True)
    assert "projections" in out
    grads = pullback({"projections": (None, (weights[0], None, weights[1]))})
    for name in ("encoder.layer.1.attention.self.key.bias", "encoder.layer.1.output.dense.weight"):
        assert not grads[name].any()

    def loss():
        query, _, value = model(IDS, MASK, output_projections=True).projections[1]
        return (query * weights[0] + value * weights[1]).sum()

    for name in ("encoder.layer.1.attention.self.value.weight", "encoder.layer.0.output.dense.weight"):
        assert_slope(model, grads, loss, [name], rel=1e-6)


@pytest.mark.parametrize("name", ["deberta-base", "xlnet-base-cased", "luke-base", "transfo-xl-wt103"])
def test_attention_of_a_familys_own_has_none(name):
    entities = {"entity_ids": [[1]] * 3, "entity_position_ids": [[[0]]] * 3} if name == "luke-base" else {}
    with pytest.raises(ValueError, match="output_projections: layers of this family"):
        random_model(name)(IDS, output_projections=True, **entities)
