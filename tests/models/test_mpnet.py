"""MPNet: every head against transformers, biases of relative position, old files."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, kernels
from tests.models.family_checks import check_backends, check_refused, check_spellings
from tests.models.family_parity import check, random_batch
from tests.tiny_families import drawn_anew

TASKS = (None, "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
TINY = {
    "model_type": "mpnet", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 26,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "distances beyond the last bucket": ({"max_position_embeddings": 170, "num_hidden_layers": 1}, [163, 2, 131]),
    "lengths up to the longest": ({"max_position_embeddings": 13}, list(range(1, 12))),
    "another padding in the config": ({"pad_token_id": 5}, [9, 4]),
    "relu": ({"hidden_act": "relu", "layer_norm_eps": 1e-2}, [8, 5]),
    "decoder of its own": ({"tie_word_embeddings": False, "hidden_act": "gelu_new"}, [6, 9]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 26, "layer_norm_eps": 1e-5, "num_labels": 3}
    return transformers.MPNetConfig(**sizes | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    check(small_config(), task, random_batch(small_config(), [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config, unused = small_config(**changes), ("lm_head.bias",) if "tie_word_embeddings" in changes else ()
    batch = random_batch(config, lengths, np.random.default_rng(1))
    batch["input_ids"][batch["attention_mask"] == 0] = 1
    check(config, "MaskedLM", batch, unwritten=unused)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["left padding", "holes", "padding among the words"])
def test_columns_count_distances_and_words_positions(cpu_backend, kind):
    config, rng = small_config(), np.random.default_rng(2)
    batch = random_batch(config, [11, 1, 7], rng, padding="left" if kind == "left padding" else "right")
    if kind != "left padding":
        batch["input_ids"][0, [2, 5, 6]] = config.pad_token_id
    if kind == "holes":
        batch["attention_mask"][0, [2, 5, 6]] = 0
    check(config, "TokenClassification", batch)


@pytest.mark.parity
def test_buckets_are_those_of_transformers():
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-128, 129)
    expected = MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances))
    np.testing.assert_array_equal(kernels.bucketed_distances(), expected)


def test_backends_and_dtypes_agree():
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options), on_gpu=False)


def test_an_empty_row_and_one_that_is_shorter_change_nothing(cpu_backend):
    model = drawn_anew(AutoModel.from_config(TINY))
    ids = np.random.default_rng(0).integers(2, 40, (3, 9))
    mask = np.arange(9) < np.array([9, 0, 4])[:, None]
    found = model(ids, mask).last_hidden_state
    for row, length in ((0, 9), (2, 4)):
        alone = model(ids[row : row + 1, :length]).last_hidden_state[0]
        np.testing.assert_allclose(found[row, :length], alone, rtol=0, atol=1e-5)
    assert not found[1].any()


def test_old_files_load(tmp_path):
    copies = {
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }
    check_spellings(drawn_anew(AutoModelForMaskedLM.from_config(TINY)), tmp_path, prefix="mpnet.", copies=copies)


def test_configs_that_are_refused():
    refused = {"relative_attention_num_buckets": 64, "max_position_embeddings": 2, "is_decoder": True}
    check_refused(AutoModel, TINY, refused)
    assert AutoModel({"model_type": "mpnet"}).num_parameters() == 109_484_928
