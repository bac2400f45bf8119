"""Discriminators, which tell replaced tokens: DeBERTa-v3's head by its definition, and which checkpoints are some."""

import json

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoModelForPreTraining, ReplacedTokenModel, load_model
from bertcore.checkpoint.weights import save_checkpoint
from bertcore.models.pretraining import Discriminator
from bertcore.models.replaced_tokens import generator_config
from bertcore.presets import PRESETS, preset_config
from tests.kernels.oracles import gelu, layer_norm
from tests.refusals import refuses
from tests.tiny_families import drawn_anew, runnable, tiny_config

pytestmark = pytest.mark.usefixtures("on_numpy")

TELLING = {"electra", "deberta-v2", "roberta", "xlm-roberta", "camembert"}
IDS = np.array([[7, 8, 9, 10, 11], [12, 13, 14, 5, 5]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.mark.parametrize("name", ["deberta-v3-small", "codebert"])
@pytest.mark.parametrize("padding", ["right", "left", None])
def test_heads_by_their_definition(padding, name):
    """classifier(GELU(dense(LayerNorm(hidden + first hidden)))); CodeBERT's is ELECTRA's, of the hidden state alone."""
    model = drawn_anew(Discriminator.from_config(tiny_config(name), dtype="float64"))
    ids, mask = (IDS, MASK) if padding else (IDS[:1], MASK[:1])
    if padding == "left":
        ids, mask = ids[:, ::-1], mask[:, ::-1]
    out = model(ids, mask, output_hidden_states=True)
    hidden, state = out.hidden_states[-1], model.state_dict()
    prefix, last = (
        ("mask_predictions", "classifier") if "v3" in name else ("discriminator_predictions", "dense_prediction")
    )
    head = {key.removeprefix(f"{prefix}."): array for key, array in state.items() if key.startswith(prefix)}
    if "LayerNorm.weight" in head:
        first = hidden[np.arange(len(ids)), mask.argmax(1)][:, None]
        hidden = layer_norm(hidden + first, head["LayerNorm.weight"], head["LayerNorm.bias"], 1e-7)
    inner = gelu(hidden @ head["dense.weight"].T + head["dense.bias"])
    expected = (inner @ head[f"{last}.weight"].T + head[f"{last}.bias"])[..., 0]
    np.testing.assert_allclose(out.logits, np.where(mask, expected, 0), rtol=1e-9, atol=1e-9)
    assert np.ptp(out.logits[mask == 1]) > 1e-2


@pytest.mark.parametrize("name", runnable())
def test_every_family_tells_replaced_tokens_or_refuses(name):
    config, model_type = tiny_config(name), PRESETS[name].config["model_type"]
    if model_type in TELLING:
        pair = ReplacedTokenModel.from_config(config, embeddings="gradient_disentangled")
        first, second = pair.generator, pair.discriminator
        assert isinstance(second, Discriminator) and first.num_parameters() < second.num_parameters()
        assert second([[7, 8, 9]]).logits.shape == (1, 3)
        return
    message = f"models of type '{config['model_type']}' have no head for replaced_tokens"
    for make in (generator_config, Discriminator.from_config, ReplacedTokenModel.from_config):
        refuses(ValueError, message, make, config)


@pytest.mark.parametrize("name, own", [("deberta-v3-small", "mask_predictions"), ("codebert", "discriminator")])
def test_a_checkpoint_is_what_it_holds(name, own, tmp_path):
    """A folder of DeBERTa-v3 has both heads and no architectures in its config, one of DeBERTa-v2 that for words."""
    config = tiny_config(name)
    words, telling = (kind.from_config(config) for kind in (AutoModelForMaskedLM, Discriminator))
    both = {**words.state_dict(), **telling.state_dict()}
    assert any(array.startswith(own) for array in both)
    save_checkpoint(tmp_path / "v3", config, both)
    save_checkpoint(tmp_path / "v2", config, words.state_dict())
    found = AutoModelForPreTraining.from_pretrained(tmp_path / "v3")
    assert type(found) is Discriminator and not found.newly_initialised
    assert type(AutoModelForPreTraining.from_pretrained(tmp_path / "v2")) is type(words)
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "v3")) is type(words)
    found.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"][0].endswith("ForPreTraining")
    np.testing.assert_array_equal(load_model(tmp_path / "saved")(IDS, MASK).logits, found(IDS, MASK).logits)


@pytest.mark.parametrize("name", ["deberta-v3-small", "deberta-v3-base", "deberta-v3-large", "codebert"])
def test_generators_of_wide_embeddings_have_half_the_layers(name):
    config = preset_config(name)
    made = generator_config(name)
    assert made.pop("num_hidden_layers") * 2 == config.pop("num_hidden_layers")
    assert made == config
    assert generator_config(name, 0.01)["num_hidden_layers"] == 1
