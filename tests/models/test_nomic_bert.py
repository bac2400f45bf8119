"""NomicBERT: every head against transformers, texts beyond the trained length, published keys and names."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, use_backend
from tests.models.family_checks import check_backends, check_loads, check_refused, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (None, "MaskedLM", "SequenceClassification", "TokenClassification")
TINY = {
    "model_type": "nomic_bert", "vocab_size": 40, "n_embd": 24, "n_head": 2, "n_layer": 2, "n_inner": 32,
    "n_positions": 24, "activation_function": "swiglu", "max_trained_positions": 8, "type_vocab_size": 2,
}  # fmt: skip
AS_TRANSFORMERS = {
    "model_type": "nomic_bert", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "hidden_act": "silu", "max_position_embeddings": 24, "head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}  # fmt: skip
DYNAMIC = {"max_position_embeddings": 7, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 38": ({"num_attention_heads": 1, "hidden_size": 38}, [5, 3, 11]),
    "heads wider than the hidden size": ({"head_dim": 20}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths, another activation": ({"hidden_act": "gelu"}, [23, 17, 2, 13]),
    "one token type": ({"type_vocab_size": 1}, [5, 1, 3]),
    "another theta, scaled": ({"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}}, [9, 4]),
    "longer than trained on": (DYNAMIC, [11, 11]),
    "as long as trained on": (DYNAMIC, [7, 3]),
    "decoder of its own": ({"tie_word_embeddings": False, "pad_token_id": 5}, [6, 9]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 53}
    return transformers.NomicBertConfig(**sizes | {"num_hidden_layers": 2, "max_position_embeddings": 64} | changes)


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
    batch = random_batch(config, lengths, np.random.default_rng(1))
    check(config, "MaskedLM", batch, unwritten=() if config.tie_word_embeddings else ("cls.predictions.bias",))


@pytest.mark.parity
def test_left_padding(cpu_backend):
    config = small_config()
    check(config, "MaskedLM", random_batch(config, [11, 1, 7], np.random.default_rng(2), padding="left"))


def test_backends_and_dtypes_agree():
    config = TINY | {"rotary_scaling_factor": 2.0, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True}
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(config, **options), lengths=(11, 0, 4))


def test_a_long_text_does_not_change_with_its_neighbours(cpu_backend):
    model = drawn_anew(AutoModel.from_config(TINY | {"rotary_scaling_factor": 2.0}))
    words = np.random.default_rng(0).integers(1, 40, (2, 23))
    mask = np.arange(23) < np.array([[11], [23]])
    alone = model(words[:1, :11]).last_hidden_state[0]
    beside = model(words, mask).last_hidden_state[0, :11]
    np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-6 * np.abs(alone).max())
    plain = AutoModel.from_config(TINY)
    plain.load_state_dict(model.state_dict())
    assert np.abs(plain(words[:1, :11]).last_hidden_state[0] - alone).max() > 0.1  # scaled, that is


def test_published_keys_and_those_of_transformers_say_the_same():
    published, ours = AutoModel.from_config(TINY), AutoModel.from_config(AS_TRANSFORMERS)
    assert published.expected_tensors() == ours.expected_tensors()
    assert published.spec.longest_sequence == ours.spec.longest_sequence == 24
    drawn_anew(published), ours.load_state_dict(published.state_dict())
    batch = [[3, 9, 8, 7], [4, 4, 2, 1]]
    with use_backend("numpy"):
        np.testing.assert_array_equal(published(batch).last_hidden_state, ours(batch).last_hidden_state)


@pytest.mark.parametrize("prefix", ["nomic_bert.", "bert.", "", "module.bert."])
def test_published_files_load(tmp_path, prefix):
    config = TINY | {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}
    model = drawn_anew(AutoModelForMaskedLM.from_config(config))
    tensors = {name.replace("nomic_bert.", prefix): array for name, array in model.state_dict().items()}
    tensors["cls.predictions.decoder.weight"] = tensors[f"{prefix}embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    tensors[f"{prefix}encoder.layers.0.attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    check_loads(model, tmp_path, tensors)


def test_configs_that_are_refused():
    refused = {
        "n_embd": 0, "n_layer": 10**9, "activation_function": "gelu", "prenorm": True, "rotary_emb_fraction": 0.5,
        "rotary_emb_interleaved": True, "use_rms_norm": True, "num_experts": 8, "causal": True, "head_dim": 0,
    }  # fmt: skip
    check_refused(AutoModel, TINY, refused)
    with pytest.raises(ValueError, match="heads are 3 wide, expected an even width"):
        AutoModel(TINY | {"n_head": 8})
