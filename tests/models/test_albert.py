"""ALBERT: every head against transformers, groups and inner groups of layers, old files."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining
from tests.models.family_checks import check_backends, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (
    *(None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
    "MultipleChoice",
)
TINY = {
    "model_type": "albert", "vocab_size": 40, "embedding_size": 16, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2, "intermediate_size": 32,
    "max_position_embeddings": 24,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1, "hidden_act": "gelu"}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths": ({"embedding_size": 64}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 11}, list(range(1, 12))),
    "projection of the same width": ({"embedding_size": 39}, [9, 4]),
    "padding that is word 5": ({"pad_token_id": 5, "type_vocab_size": 1}, [9, 4]),
    "decoder of its own": ({"tie_word_embeddings": False}, [6, 9]),
    "a group for each layer": ({"num_hidden_groups": 3}, [6, 9]),
    "groups that do not divide the layers": ({"num_hidden_layers": 5, "num_hidden_groups": 3}, [6, 2]),
    "groups that rounding shifts": ({"num_hidden_layers": 18, "num_hidden_groups": 14}, [5, 3]),
    "inner groups": ({"inner_group_num": 2, "num_hidden_groups": 2, "num_hidden_layers": 3}, [6, 2]),
    "inner groups of one group": ({"inner_group_num": 3, "num_hidden_layers": 2}, [6, 2]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "embedding_size": 17, "hidden_size": 39, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 53, "num_hidden_layers": 3, "max_position_embeddings": 24}
    return transformers.AlbertConfig(**sizes | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    # The classes of sentence order are num_labels, too, in transformers, of which it needs two.
    config = small_config(num_labels=2 if task == "PreTraining" else 3)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    unused = ("predictions.bias",) if not config.tie_word_embeddings else ()  # the decoder has a bias of its own
    check(config, "MaskedLM", random_batch(config, lengths, np.random.default_rng(1)), unwritten=unused)


@pytest.mark.parity
def test_left_padding_and_holes(cpu_backend):
    config = small_config()
    batch = random_batch(config, [11, 1, 7], np.random.default_rng(2), padding="left")
    batch["attention_mask"][0, [2, 5, 6]] = 0
    # transformers counts ALBERT's positions from the first column, also where that is padding.
    first = batch["attention_mask"].argmax(axis=1)[:, None]
    batch["position_ids"] = np.maximum(np.arange(11) - first, 0)
    check(config, "MaskedLM", batch)


@pytest.mark.parametrize("kind", [AutoModelForMaskedLM, AutoModelForPreTraining])
def test_backends_and_dtypes_agree(kind):
    check_backends(lambda **options: kind.from_config(TINY, **options))


def test_old_files_load(tmp_path):
    copies = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    for kind in (AutoModelForMaskedLM, AutoModelForPreTraining):
        check_spellings(drawn_anew(kind.from_config(TINY)), tmp_path, prefix="albert.", copies=copies)


def test_parameters():
    base = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    for config, parameters in [(base, 11_683_584), ({}, 222_595_584)]:
        assert AutoModel({"model_type": "albert"} | config).num_parameters() == parameters


def test_layers_of_a_group_are_one():
    layers = AutoModel(TINY).encoder.layers  # 3 passes through 2 groups of 2 layers
    assert layers[0:2] == layers[2:4] and layers[0] is not layers[1]
    assert len(layers) == 6 and len({id(layer) for layer in layers}) == 4
    assert "encoder.albert_layer_groups.1.albert_layers.1.ffn.weight" in AutoModel(TINY).expected_tensors()


def test_configs_that_are_refused():
    refused = {"num_hidden_groups": 4, "inner_group_num": 0, "num_hidden_layers": 6000, "embedding_size": -1}
    check_refused(AutoModel, TINY, refused)
