"""Discriminators of replaced tokens, and DeBERTa's enhanced mask decoder, by their definitions."""

import json

import numpy as np
import pytest

import bertcore
from bertcore import AutoModelForMaskedLM, ReplacedTokenModel, load_model, use_backend, value_and_grad
from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.weights import save_checkpoint
from bertcore.families.deberta import DebertaForMaskedLM
from bertcore.models.pretraining import Discriminator
from bertcore.models.replaced_tokens import generator_config
from bertcore.passes import Pass
from bertcore.presets import PRESETS, preset_config
from tests.kernels.oracles import gelu, layer_norm
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_families import drawn_anew, runnable, tiny_config
from tests.tolerances import assert_same_arrays

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
    of_electra = "discriminator_predictions", "dense_prediction"
    prefix, last = ("mask_predictions", "classifier") if "v3" in name else of_electra
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
    found = bertcore.AutoModelForPreTraining.from_pretrained(tmp_path / "v3")
    assert type(found) is Discriminator and not found.newly_initialised
    assert type(bertcore.AutoModelForPreTraining.from_pretrained(tmp_path / "v2")) is type(words)
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


NAMES = ("deberta-base", "deberta-v3-small")
DECODER_IDS = np.array([[7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 0, 0]])
DECODER_MASK = (DECODER_IDS > 0).astype(int)
LABELS = np.where(DECODER_IDS % 3 == 1, DECODER_IDS, -100)


def model_of(name, dtype="float64", **changes):
    config = tiny_config(name) | {"max_position_embeddings": 16, "pad_token_id": 0, "position_biased_input": False}
    if "position_buckets" in config:
        config["position_buckets"] = 16  # those of near distances are all there is
    return drawn_anew(AutoModelForMaskedLM.from_config(config | changes, enhanced_mask_decoder=True, dtype=dtype))


def parts_of(model):
    """(states below the last layer, a function of its feed-forward, the last hidden state) from the model itself."""
    plain = AutoModelForMaskedLM.from_config({**model.config, "enhanced_mask_decoder": False}, dtype="float64")
    state = model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.expected_tensors()})
    return plain


def norm(array, weight, bias):
    return layer_norm(array, weight, bias, 1e-7)


def by_definition(model, ids):
    """The logits of one text, (tokens, words): equation 4 of the paper with relative rows as transformers has them."""
    plain, state, prefix = parts_of(model), model.state_dict(), "deberta."
    below = plain([ids], output_hidden_states=True).hidden_states[-2][0]
    tokens, width = below.shape
    heads = model.spec.num_heads
    size = width // heads
    last = f"{prefix}encoder.layer.{model.spec.num_layers - 1}."
    layer = {name.removeprefix(last): array for name, array in state.items() if name.startswith(last)}
    details = model.spec.details
    table = state[f"{prefix}encoder.rel_embeddings.weight"]
    if details.has_norm:
        table = norm(table, *(state[f"{prefix}encoder.LayerNorm.{part}"] for part in ("weight", "bias")))
    rows = np.clip(np.arange(tokens)[:, None] - np.arange(tokens) + details.span, 0, 2 * details.span - 1)

    def split(array):
        return array.reshape(len(array), heads, size).transpose(1, 0, 2)

    if "attention.self.in_proj.weight" in layer:
        joined = layer["attention.self.in_proj.weight"].reshape(heads, 3, size, width)
        maps = [joined[:, part].reshape(width, width) for part in range(3)]
        biases = layer["attention.self.q_bias"], 0, layer["attention.self.v_bias"]
        place_key = table @ layer["attention.self.pos_proj.weight"].T
        place_query = table @ layer["attention.self.pos_q_proj.weight"].T + layer["attention.self.pos_q_proj.bias"]
    else:
        named = [f"attention.self.{part}_proj" for part in ("query", "key", "value")]
        maps, biases = ([layer[f"{name}.{kind}"] for name in named] for kind in ("weight", "bias"))
        place_query, place_key = table @ maps[0].T + biases[0], table @ maps[1].T + biases[1]
    key, value = (split(below @ maps[part].T + biases[part]) for part in (1, 2))
    place_query, place_key = split(place_query), split(place_key)
    states = below + state[f"{prefix}embeddings.position_embeddings.weight"][:tokens]
    for _ in range(2):
        query = split(states @ maps[0].T + biases[0])
        scores = query @ key.transpose(0, 2, 1)
        scores += np.take_along_axis(query @ place_key.transpose(0, 2, 1), np.broadcast_to(rows, scores.shape), 2)
        to_query = key @ place_query.transpose(0, 2, 1)
        scores += np.stack([[[head[j, rows[i, j]] for j in range(tokens)] for i in range(tokens)] for head in to_query])
        weights = np.exp(scores / np.sqrt(3 * size))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        mixed = mixed.transpose(1, 0, 2).reshape(tokens, width)
        attended = mixed @ layer["attention.output.dense.weight"].T + layer["attention.output.dense.bias"] + states
        attended = norm(attended, *(layer[f"attention.output.LayerNorm.{part}"] for part in ("weight", "bias")))
        inner = gelu(attended @ layer["intermediate.dense.weight"].T + layer["intermediate.dense.bias"])
        states = inner @ layer["output.dense.weight"].T + layer["output.dense.bias"] + attended
        states = norm(states, *(layer[f"output.LayerNorm.{part}"] for part in ("weight", "bias")))
    return plain.heads[0](Pass.begin(), states)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_its_definition(name, layers):
    model = model_of(name, num_hidden_layers=layers)
    with use_backend("numpy"):
        found, last = model(DECODER_IDS, DECODER_MASK).logits, parts_of(model)(DECODER_IDS, DECODER_MASK).logits
        for row, ids in enumerate((DECODER_IDS[0], DECODER_IDS[1][:4])):
            expected = by_definition(model, ids)
            np.testing.assert_allclose(found[row, : len(ids)], expected, rtol=1e-9, atol=1e-9)
            assert np.abs(last[row, : len(ids)] - expected).max() > 1e-2  # not what reads the last hidden state
    assert not found[1, 4:].any()


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_what_is_asked_change_nothing(name):
    model = model_of(name, "float32")
    expected = model(DECODER_IDS, DECODER_MASK)
    assert expected.hidden_states is None
    left = model(*(np.array([array[0], np.roll(array[1], 2)]) for array in (DECODER_IDS, DECODER_MASK)))
    np.testing.assert_allclose(left.logits[1, 2:], expected.logits[1, :4], atol=1e-4)
    asked = model(DECODER_IDS, DECODER_MASK, output_hidden_states=True, output_attentions=True)
    assert len(asked.hidden_states) == len(asked.attentions) + 1 == model.spec.num_layers + 1
    np.testing.assert_allclose(asked.logits, expected.logits, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("layers", [1, 3])
def test_labelled_tokens_alone_have_the_scores_of_all(name, backend, layers):
    model = model_of(name, "float32", num_hidden_layers=layers)
    with use_backend(backend):
        expected, out = model(DECODER_IDS, DECODER_MASK).logits, model(DECODER_IDS, DECODER_MASK, labels=LABELS)
        scores, words = model.label_scores(DECODER_IDS, DECODER_MASK, labels=LABELS)
        asked = model(DECODER_IDS, DECODER_MASK, output_hidden_states=True).logits
    np.testing.assert_array_equal(words, LABELS[LABELS != -100])
    np.testing.assert_allclose(scores, expected[LABELS != -100], atol=1e-4)
    np.testing.assert_allclose(out.logits, expected, atol=1e-4)
    np.testing.assert_allclose(asked, expected, atol=1e-4)
    model.encoder.layers[-1] = None  # but the decoder's own is this one
    with pytest.raises(AttributeError, match="attention"), use_backend(backend):
        model(DECODER_IDS, DECODER_MASK)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name):
    model = model_of(name)
    with use_backend("numpy"):
        _, grads = value_and_grad(model)(DECODER_IDS, DECODER_MASK, labels=LABELS)
        assert_slope(model, grads, lambda: model(DECODER_IDS, DECODER_MASK, labels=LABELS).loss, rel=1e-6)
    positions = grads["deberta.embeddings.position_embeddings.weight"]
    columns = sorted({column for row in LABELS for column in np.flatnonzero(row != -100)})
    assert np.flatnonzero(positions.any(axis=1)).tolist() == columns  # other positions are neither queried nor seen


def test_layers_run_again_give_the_same_bits():
    model = model_of("deberta-v3-small", "float32")
    _, grads = value_and_grad(model.train(1))(DECODER_IDS, DECODER_MASK, labels=LABELS)
    model.gradient_checkpointing_enable()
    _, again = value_and_grad(model.train(1))(DECODER_IDS, DECODER_MASK, labels=LABELS)
    assert_same_arrays(again, grads)


def test_a_checkpoint_has_the_positions(tmp_path):
    model = model_of("deberta-v3-small", "float32")
    model.save_pretrained(tmp_path / "with")
    found = load_model(tmp_path / "with")
    assert isinstance(found, DebertaForMaskedLM)
    np.testing.assert_array_equal(found(DECODER_IDS, DECODER_MASK).logits, model(DECODER_IDS, DECODER_MASK).logits)
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path / "with", enhanced_mask_decoder=False)
    one, other = (each(DECODER_IDS, DECODER_MASK).logits[DECODER_MASK == 1] for each in (plain, found))
    assert np.abs(one - other).max() > 1e-2
    plain.save_pretrained(tmp_path / "without")
    with pytest.raises(CheckpointError, match=r"position_embeddings\.weight"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "without", enhanced_mask_decoder=True)


def test_what_it_is_not_for():
    refuses(ValueError, "position_biased_input is True, ", model_of, "deberta-v3-small", position_biased_input=True)
    refuses(ValueError, "embedding_size is 24, expected 48", model_of, "deberta-v3-small", embedding_size=24)
    with pytest.raises(ValueError, match="a text of 17 tokens, expected at most 16 for enhanced_mask_decoder"):
        model_of("deberta-v3-small")([[7] * 17])
