"""RoBERTa, CamemBERT and XLM-R: every head against transformers, positions, losses, old files."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend
from tests.models.family_checks import check_backends, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (
    *(None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
    "MultipleChoice",
)
TINY = {
    "model_type": "roberta", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 26, "type_vocab_size": 1,
}  # fmt: skip
BASE = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
UNUSED = ("lm_head.bias",)  # where the decoder has a bias of its own
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths": ({}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 13}, list(range(1, 12))),
    "padding that is word 0": ({"pad_token_id": 0, "bos_token_id": 1}, [9, 4]),
    "token types, relu": ({"type_vocab_size": 3, "hidden_act": "relu"}, [8, 5]),
    "decoder of its own": ({"tie_word_embeddings": False, "hidden_act": "gelu_new"}, [6, 9]),
}


def small_config(kind="Roberta", **changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return getattr(transformers, f"{kind}Config")(**sizes | changes)


def check_on(config, task, lengths, *, seed=1, **options):
    check(config, task, random_batch(config, lengths, np.random.default_rng(seed)), **options)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    check_on(small_config(num_labels=3), task, [11, 1, 7])


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["Camembert", "XLMRoberta"])
@pytest.mark.parametrize("task", TASKS)
def test_heads_of_the_families_alike(kind, task):
    with use_backend("numba"):
        check_on(small_config(kind, num_labels=3), task, [3, 10])


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    check_on(small_config(**changes), "MaskedLM", lengths, unwritten=UNUSED if "tie_word_embeddings" in changes else ())


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "TokenClassification"])
@pytest.mark.parametrize("kind", ["left padding", "holes", "padding among the words"])
def test_positions_count_words(cpu_backend, task, kind):
    config, rng = small_config(), np.random.default_rng(2)
    batch = random_batch(config, [11, 1, 7], rng, padding="left" if kind == "left padding" else "right")
    if kind != "left padding":
        batch["input_ids"][0, [2, 5, 6]] = config.pad_token_id
    if kind == "holes":
        batch["attention_mask"][0, [2, 5, 6]] = 0
    check(config, task, batch)


@pytest.mark.parity
@pytest.mark.parametrize("problem_type", [None, "regression", "multi_label_classification"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_losses_of_sequence_classification(cpu_backend, problem_type, num_labels):
    config, rng = small_config(num_labels=num_labels, problem_type=problem_type), np.random.default_rng(3)
    batch = random_batch(config, [4, 9, 2], rng)
    labels = rng.random((3, num_labels)).astype(np.float32)
    if problem_type == "regression":
        labels = labels[:, 0] if num_labels == 1 else 10 * labels
    check(config, "SequenceClassification", batch, targets={"labels": labels})


def test_backends_and_dtypes_agree():
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options))


def test_left_padding_changes_nothing():
    model, rng = drawn_anew(AutoModelForSequenceClassification.from_config(TINY)), np.random.default_rng(0)
    words = rng.integers(2, 40, (2, 6))
    left, right = np.full((2, 9), 1), np.full((2, 9), 1)
    left[:, 3:] = right[:, :6] = words
    with use_backend("numpy"):
        plain = model(words).logits
        for padded in (left, right):
            np.testing.assert_allclose(model(padded, padded != 1).logits, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["roberta", "camembert", "xlm-roberta"])
def test_old_files_load(kind, tmp_path):
    copies = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY | {"model_type": kind}))
    check_spellings(model, tmp_path, prefix="roberta.", copies=copies)


def test_parameters():
    xlm = BASE | {"model_type": "xlm-roberta", "vocab_size": 250002}
    sizes = [(BASE, 124_645_632), (BASE | LARGE, 355_359_744), (xlm, 278_043_648), (xlm | LARGE, 559_890_432)]
    for config, parameters in sizes:
        assert AutoModel({"model_type": "roberta"} | config).num_parameters() == parameters


def test_configs_that_are_refused():
    refused = {"is_decoder": True, "position_embedding_type": "relative_key", "pad_token_id": None}
    check_refused(AutoModel, TINY, refused)
    with pytest.raises(ValueError, match="max_position_embeddings is 2, expected more than 2"):
        AutoModel(TINY | {"max_position_embeddings": 2})
    assert AutoModel({"model_type": "roberta"}).spec.vocab_size == 50265
    assert AutoModel({"model_type": "xlm-roberta"}).spec.longest_sequence == 510
