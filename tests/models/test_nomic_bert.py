"""NomicBERT: texts beyond the trained length, published keys and names."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, use_backend
from tests.models.family_checks import check_loads, drawn_anew
from tests.models.family_parity import check, check_saved_config, random_batch

TINY = {
    "model_type": "nomic_bert", "vocab_size": 40, "n_embd": 24, "n_head": 2, "n_layer": 2, "n_inner": 32,
    "n_positions": 24, "activation_function": "swiglu", "max_trained_positions": 8, "type_vocab_size": 2,
}  # fmt: skip
AS_TRANSFORMERS = {
    "model_type": "nomic_bert", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "hidden_act": "silu", "max_position_embeddings": 24, "head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}  # fmt: skip


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


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="heads are 3 wide, expected an even width"):
        AutoModel(TINY | {"n_head": 8})


@pytest.mark.parity
def test_positions_beyond_the_trained_ones():
    import transformers

    config = transformers.AutoConfig.for_model(**AS_TRANSFORMERS | {"max_position_embeddings": 7})
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    batch = random_batch(config, [5], np.random.default_rng(0))
    check(config, "MaskedLM", batch | {"position_ids": 3 * np.arange(5)[None]})


def test_positions_have_a_bound():
    with pytest.raises(ValueError, match=r"position_ids\[0, 1\] is 1073741824, expected 0 to 1048575"):
        AutoModel.from_config(TINY)([[3, 4]], position_ids=[[0, 2**30]])


@pytest.mark.parity
def test_transformers_loads_what_a_published_config_is_saved_as(tmp_path):
    check_saved_config(TINY | {"rotary_scaling_factor": 2.0}, tmp_path)
