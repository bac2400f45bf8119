"""EuroBERT: every head against transformers, grouped keys, programs, code that it stands for."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend
from bertcore.models.registry import family_of
from tests.models.family_checks import check_backends, check_loads, check_refused
from tests.models.family_parity import check, random_batch
from tests.tiny_families import drawn_anew

TINY = {
    "model_type": "eurobert", "vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "intermediate_size": 20, "pad_token_id": 3,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "all biases": ({"attention_bias": True, "mlp_bias": True}, [9, 1, 11]),
    "as many keys as queries": ({"num_key_value_heads": 4}, [5, 3]),
    "one head of keys": ({"num_key_value_heads": 1}, [23, 17]),
    "heads of 6": ({"head_dim": 6}, [1, 1]),
    "another activation": ({"hidden_act": "gelu"}, [13, 2]),
    "longer than trained": ({"max_position_embeddings": 8}, [29, 26]),
    "one table of words": ({"tie_word_embeddings": True}, [6, 9]),
    "theta": ({"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}, [39, 38]),
    "scaled": ({"rope_parameters": {"rope_theta": 50.0, "rope_type": "linear", "factor": 3.0}}, [31]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
             "num_hidden_layers": 2, "intermediate_size": 25, "rms_norm_eps": 1e-3}  # fmt: skip
    words = {"pad_token_id": 60, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 4}
    return transformers.EuroBertConfig(**sizes | words | {"num_labels": 3} | changes)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("task", "pooling"),
    [
        *((task, "late") for task in (None, "MaskedLM", "TokenClassification")),
        *(("SequenceClassification", pooling) for pooling in ("bos", "mean", "late")),
    ],
)
def test_heads(cpu_backend, task, pooling):
    config = small_config(classifier_pooling=pooling)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    check(config, "MaskedLM", random_batch(config, lengths, np.random.default_rng(1)))


@pytest.mark.parity
def test_left_padding_and_holes(cpu_backend):
    config = small_config(classifier_pooling="late")
    batch = random_batch(config, [13, 9, 1], np.random.default_rng(2), padding="left")
    batch["attention_mask"][0, [2, 6]] = 0
    check(config, "SequenceClassification", batch)


def test_backends_and_dtypes_agree():
    for keys, on_gpu in ((4, True), (2, False)):  # where attention has no shared heads yet
        config = TINY | {"num_key_value_heads": keys}
        check_backends(lambda config=config, **how: AutoModelForMaskedLM.from_config(config, **how), on_gpu=on_gpu)


def test_a_program_holds_the_whole_encoder():
    model, ids = drawn_anew(AutoModel.from_config(TINY)), np.arange(38).reshape(2, 19) % 40
    with use_backend("numba"):
        found = [model(ids).last_hidden_state for _ in range(3)]
    (recordings,) = model.encoder._recordings.at(model.encoder.version)._kept.values()
    assert len(recordings) == 1
    with use_backend("numpy"):
        truth = model(ids).last_hidden_state
    for hidden in found:
        np.testing.assert_allclose(hidden, truth, rtol=0, atol=2e-5)


def test_files_of_other_spellings_load(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    tensors = model.state_dict()
    buffers = {"model.rotary_emb.inv_freq": np.ones(4, np.float32)}
    check_loads(model, tmp_path, {f"module.{name}": array for name, array in (tensors | buffers).items()})
    check_loads(model, tmp_path, {name.removeprefix("model."): array for name, array in tensors.items()})


def test_published_configs():
    """They name code, which this family stands for, and write rotary positions as before transformers 5."""
    for module in ("modeling_eurobert", "EuroBERT/EuroBERT-610m--modeling_eurobert"):
        assert family_of({"auto_map": {"AutoModel": f"{module}.EuroBertModel"}}).model_type == "eurobert"
    old = AutoModel(TINY | {"rope_theta": 250000, "rope_scaling": None, "clf_pooling": "late", "pretraining_tp": 1})
    new = AutoModel(TINY | {"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}})
    assert old.spec == new.spec and old.spec.layers[0].rotary.theta == 250000


def test_configs_that_are_refused():
    refused = {"num_key_value_heads": 0, "head_dim": "8", "rms_norm_eps": -1, "mlp_bias": 1,
               "classifier_pooling": "max", "rope_parameters": [], "rope_scaling": 2}  # fmt: skip
    check_refused(AutoModelForSequenceClassification, TINY, refused)
    with pytest.raises(ValueError, match="num_attention_heads is 4, expected a multiple of num_key_value_heads 3"):
        AutoModel(TINY | {"num_key_value_heads": 3})
    with pytest.raises(ValueError, match=r"rope_scaling\.rope_type is 'yarn'"):
        AutoModel(TINY | {"rope_scaling": {"rope_type": "yarn"}})
