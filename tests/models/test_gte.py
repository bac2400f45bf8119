"""GTE: published keys and names."""

import dataclasses

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForSequenceClassification, load_model, use_backend
from tests.models.family_checks import check_loads, drawn_anew
from tests.models.family_parity import check_saved_config
from tests.refusals import refuses
from tests.tiny_families import tiny_config

TINY = {
    "model_type": "new", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "rope_theta": 20000.0,
    "rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    "logn_attention_scale": False, "logn_attention_clip1": False, "pack_qkv": True,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
}  # fmt: skip


def test_static_scaling_is_a_larger_theta_and_a_divided_angle():
    """theta * f, and every angle divided by f^(2 / head_dim), at all lengths: transformers spells that "linear"."""
    linear = {"rope_type": "linear", "factor": 8.0 ** (2 / 12), "rope_theta": 8 * 20000.0}
    same = {key: value for key, value in TINY.items() if key not in ("rope_scaling", "rope_theta", "auto_map")}
    same |= {"model_type": "gte", "rope_parameters": linear, "pad_token_id": None}
    del same["position_embedding_type"]
    model, other = drawn_anew(AutoModel.from_config(TINY)), AutoModel.from_config(same)
    rotary = {"layers": ()}
    assert dataclasses.replace(model.spec, **rotary) == dataclasses.replace(other.spec, **rotary)
    other.load_state_dict(model.state_dict())
    words = np.random.default_rng(0).integers(1, 40, (2, 24))
    with use_backend("numpy"):
        found, expected = (each(words).last_hidden_state for each in (model, other))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("prefix", ["gte.", "new."])
def test_published_files_load(tmp_path, prefix):
    model = drawn_anew(AutoModelForSequenceClassification.from_config(TINY))
    names = {name: name.replace("gte.", prefix) for name in model.expected_tensors()}
    check_loads(model, tmp_path, {names[name]: array for name, array in model.state_dict().items()})


def test_configs_that_are_refused():
    for scaling, key in (
        ({"type": "yarn"}, "rope_scaling.type"),
        ({"type": "ntk", "mixed_b": 1.0}, "rope_scaling.mixed_b"),
    ):
        refuses(ValueError, rf"config: {key} is", AutoModel, TINY | {"rope_scaling": {"factor": 2.0} | scaling})


@pytest.mark.parity
def test_transformers_loads_what_a_published_config_is_saved_as(tmp_path):
    check_saved_config(TINY, tmp_path)


@pytest.mark.parametrize("model_type", ["new", "gte", "xlm-roberta-flash", "jina_embeddings_v3"])
def test_dynamic_positions_and_absent_sizes_are_saved(tmp_path, model_type):
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    config = tiny_config("gte-base-en-v1.5" if model_type in ("new", "gte") else "jina-embeddings-v3")
    config |= {"model_type": model_type, "max_position_embeddings": 64, "initializer_range": 0.5}
    config = {key: value for key, value in config.items() if key not in ("rope_parameters", "auto_map")}
    config |= {"rope_scaling": scaling} | ({"vocab_size": None} if model_type == "new" else {})
    model = AutoModel.from_config(config)
    model.save_pretrained(tmp_path / "saved")
    ids = np.arange(6, 46)[None]
    np.testing.assert_array_equal(load_model(tmp_path / "saved")(ids)[0], model(ids)[0])
