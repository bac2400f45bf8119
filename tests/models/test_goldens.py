"""BERT against the committed goldens: outputs, loss and gradients that transformers gave in float64."""

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, use_backend, value_and_grad

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("*/config.json"))
# Relative to the scale of what is compared. Hidden states are held to what is promised to users; gradients are stored
# in float32, and cancel more.
OUTPUT_TOLERANCE = {"float32": 2e-5, "float64": 1e-9}
GRADIENT_TOLERANCE = {"float32": 1e-4, "float64": 1e-6}

every_golden = pytest.mark.parametrize("name", NAMES)


@cache
def golden(name):
    with np.load(GOLDENS / name / "io.npz") as stored:
        return dict(stored)


def inputs_of(name):
    return {key: golden(name)[key] for key in ("input_ids", "attention_mask", "token_type_ids")}


def assert_close(ours, truth, tolerance):
    assert ours.shape == truth.shape
    assert np.abs(ours - truth).max() < tolerance * np.abs(truth).max()


@every_golden
def test_encoder(cpu_dtype, name):
    truth, tolerance = golden(name), OUTPUT_TOLERANCE[cpu_dtype]
    model = AutoModel.from_pretrained(GOLDENS / name, dtype=cpu_dtype)
    out = model(**inputs_of(name), output_hidden_states=True, output_attentions=True)
    assert out.last_hidden_state.dtype == cpu_dtype
    assert len(out.hidden_states) == len(truth["hidden_states"])
    for ours, theirs in zip(out.hidden_states, truth["hidden_states"], strict=True):
        assert_close(ours, theirs, tolerance)
    for ours, theirs in zip(out.attentions, truth["attentions"], strict=True):
        assert_close(ours, theirs, tolerance)
    assert_close(out.last_hidden_state, truth["hidden_states"][-1], tolerance)
    assert_close(out.pooler_output, truth["pooler_output"], tolerance)


@every_golden
def test_masked_lm_and_every_gradient(cpu_dtype, name):
    truth, tolerance = golden(name), OUTPUT_TOLERANCE[cpu_dtype]
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / name, dtype=cpu_dtype)
    out, grads = value_and_grad(model)(**inputs_of(name), labels=truth["labels"])
    assert_close(out.logits, truth["logits"], tolerance)
    assert float(out.loss) == pytest.approx(float(truth["loss"]), rel=tolerance)
    theirs = {key.removeprefix("grad "): value for key, value in truth.items() if key.startswith("grad ")}
    assert set(grads) == set(theirs) == set(model.expected_tensors())
    largest = max(np.abs(gradient).max() for gradient in theirs.values())
    for parameter, gradient in theirs.items():
        assert grads[parameter].dtype == cpu_dtype
        # A key's bias shifts all scores of a row alike: its gradient is zero but for rounding, of no scale of its own.
        scale = largest if np.abs(gradient).max() < 1e-6 * largest else np.abs(gradient).max()
        worst = np.abs(grads[parameter] - gradient).max() / scale
        assert worst < GRADIENT_TOLERANCE[cpu_dtype], parameter


def test_tied_embeddings_stay_as_loaded():
    """The table is looked up in every pass: it is not let go for the decoder's weight, only to be made again."""
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / "three_heads_of_13")
    table, inner = model.heads[0].decoder, model.encoder.layers[0].feed_forward.expand.weight
    loaded = table.array()
    assert not loaded.flags.owndata  # a view of the file
    with use_backend("numba"):
        for _ in range(2):
            model(**inputs_of("three_heads_of_13"))
    assert table.array() is loaded
    assert inner.forms.array is None  # a weight that is only multiplied by is let go


def test_state_dict_is_read_only_and_loading_it_checks_first():
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / NAMES[0])
    state = model.state_dict()
    for array in state.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    name = "cls.predictions.bias"
    with pytest.raises(ValueError, match=r"missing are .*cls\.predictions\.bias.*unknown are .*more"):
        model.load_state_dict({key: array for key, array in state.items() if key != name} | {"more": state[name]})
    changed = {key: array + 1 for key, array in state.items()}
    with pytest.raises(ValueError, match=r"cls\.predictions\.bias'\] has shape \(3,\), expected \(61,\)"):
        model.load_state_dict(changed | {name: np.zeros(3)})
    with pytest.raises(TypeError, match=r"cls\.predictions\.bias'\] is list, expected a NumPy array"):
        model.load_state_dict(changed | {name: [0.0] * 61})
    np.testing.assert_array_equal(model.state_dict()[name], state[name])


def test_value_and_grad_needs_labels():
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / NAMES[0])
    with use_backend("numpy"), pytest.raises(ValueError, match="needs a loss"):
        value_and_grad(model)(input_ids=[[1, 2]])


def test_without_a_pooling_layer_there_is_no_pooler_output(tmp_path):
    name = NAMES[0]
    AutoModel.from_pretrained(GOLDENS / name, add_pooling_layer=False).save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    with use_backend("numpy"):
        out = model(**inputs_of(name))
    assert out.pooler_output is None
    assert out.keys() == ["last_hidden_state"]
    assert_close(out.last_hidden_state, golden(name)["hidden_states"][-1], OUTPUT_TOLERANCE["float32"])
