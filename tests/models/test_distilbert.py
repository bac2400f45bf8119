"""DistilBERT: every head against transformers, its own keys, old files."""

import numpy as np
import pytest

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    use_backend,
)
from tests.models.family_checks import check_backends, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (
    *(None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
    "MultipleChoice",
)
TINY = {
    "model_type": "distilbert", "vocab_size": 40, "dim": 24, "n_heads": 2, "n_layers": 2, "hidden_dim": 32,
    "max_position_embeddings": 24,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"n_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"dim": 320, "n_heads": 2, "n_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths": ({"activation": "relu"}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 11}, list(range(1, 12))),
    "padding that is word 5": ({"pad_token_id": 5}, [9, 4]),
    "decoder of its own": ({"tie_word_embeddings": False, "sinusoidal_pos_embds": True}, [6, 9]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "dim": 39, "n_heads": 3, "hidden_dim": 53, "n_layers": 2, "max_position_embeddings": 24}
    return transformers.DistilBertConfig(**sizes | changes)


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
def test_left_padding_and_holes(cpu_backend):
    config = small_config()
    batch = random_batch(config, [11, 1, 7], np.random.default_rng(2), padding="left")
    batch["attention_mask"][0, [2, 5, 6]] = 0
    # transformers counts DistilBERT's positions from the first column, also where that is padding.
    first = batch["attention_mask"].argmax(axis=1)[:, None]
    batch["position_ids"] = np.maximum(np.arange(11) - first, 0)
    check(config, "MaskedLM", batch)


def test_backends_and_dtypes_agree():
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options))


def test_targets_do_not_change_the_scores_of_left_padded_texts():
    model = drawn_anew(AutoModelForQuestionAnswering.from_config(TINY))
    words = np.random.default_rng(0).integers(1, 40, (2, 6))
    padded = np.concatenate([np.zeros((2, 3), int), words], axis=1)
    targets = {"start_positions": [4, 3], "end_positions": [5, 8]}
    with use_backend("numpy"):
        expected, found = model(words), model(padded, padded > 0)
        compared = model(padded, padded > 0, **targets)  # padding stays: the loss is over all columns
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(found[name][:, 3:], expected[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(compared[name], found[name], rtol=0, atol=1e-6)


def test_old_files_load(tmp_path):
    copies = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    check_spellings(model, tmp_path, prefix="distilbert.", copies=copies)


def test_parameters():
    assert AutoModel({"model_type": "distilbert"}).num_parameters() == 66_362_880


def test_keys_of_bert_stand_for_its_own():
    keys = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
    renamed = {keys.get(key, key): value for key, value in TINY.items()}
    assert AutoModel(renamed).spec == AutoModel(TINY).spec
    assert AutoModel(TINY | dict.fromkeys(keys.values(), 7)).spec == AutoModel(TINY).spec
    # Two keys that other families have and this one has not
    assert AutoModel(TINY | {"layer_norm_eps": 0.5, "type_vocab_size": 2}).spec == AutoModel(TINY).spec


def test_configs_that_are_refused():
    refused = {"dim": 0, "n_heads": "2", "n_layers": 10**9, "hidden_dim": -1, "activation": "gelu_10"}
    check_refused(AutoModelForSequenceClassification, TINY, refused)
