"""GTE: every head against transformers, published keys and names."""

import dataclasses

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend
from tests.models.family_checks import check_backends, check_loads, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (None, "MaskedLM", "SequenceClassification", "TokenClassification")
TINY = {
    "model_type": "new", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "rope_theta": 20000.0,
    "rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    "logn_attention_scale": False, "logn_attention_clip1": False, "pack_qkv": True,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 38": ({"num_attention_heads": 1, "hidden_size": 38}, [5, 3, 11]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths, another activation": ({"hidden_act": "silu"}, [23, 17, 2, 13]),
    "no token types": ({"type_vocab_size": 0, "pad_token_id": 0}, [5, 1, 3]),
    "three token types": ({"type_vocab_size": 3}, [9, 4]),
    "another theta, scaled": ({"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}}, [9, 4]),
    "decoder of its own": ({"tie_word_embeddings": False, "pad_token_id": 5}, [6, 9]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 53}
    return transformers.GteConfig(**sizes | {"num_hidden_layers": 2, "max_position_embeddings": 64} | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    check(config, "MaskedLM", random_batch(config, lengths, np.random.default_rng(1)))


@pytest.mark.parity
def test_left_padding(cpu_backend):
    config = small_config()
    check(config, "MaskedLM", random_batch(config, [11, 1, 7], np.random.default_rng(2), padding="left"))


def test_backends_and_dtypes_agree():
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options), lengths=(11, 0, 4))


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


def test_old_files_load(tmp_path):
    copies = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
    check_spellings(drawn_anew(AutoModelForMaskedLM.from_config(TINY)), tmp_path, prefix="gte.", copies=copies)


def test_configs_that_are_refused():
    refused = {
        "hidden_size": 0, "num_hidden_layers": 10**9, "hidden_act": "gelu_10", "logn_attention_scale": True,
        "logn_attention_clip1": True, "layer_norm_type": "rms_norm", "position_embedding_type": "alibi",
        "rope_scaling": 3, "pack_qkv": False,
    }  # fmt: skip
    check_refused(AutoModel, TINY, refused)
    for scaling, key in (
        ({"type": "yarn"}, "rope_scaling.type"),
        ({"type": "ntk", "mixed_b": 1.0}, "rope_scaling.mixed_b"),
    ):
        with pytest.raises(ValueError, match=rf"config: {key} is"):
            AutoModel(TINY | {"rope_scaling": {"factor": 2.0} | scaling})
