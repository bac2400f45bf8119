"""Jina v3: every head against transformers, published keys, adapters refused."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM
from tests.models.family_checks import check_backends, check_refused
from tests.models.family_parity import check, random_batch

TASKS = (None, "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
TINY = {
    "model_type": "xlm-roberta-flash", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 24, "rotary_emb_base": 77.0,
    "position_embedding_type": "rotary",
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 38": ({"num_attention_heads": 1, "hidden_size": 38}, [5, 3, 11]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths, another activation": ({"hidden_act": "silu", "type_vocab_size": 3}, [23, 17, 2, 13]),
    "another theta": ({"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, [9, 4]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 53}
    return transformers.JinaEmbeddingsV3Config(**sizes | {"num_hidden_layers": 2} | changes)


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


def test_published_keys_are_read():
    spec = AutoModel(TINY).spec
    assert {layer.rotary.theta for layer in spec.layers} == {77.0} and spec.longest_sequence == 24


def test_configs_that_are_refused():
    tasks = ["retrieval.query", "text-matching"]
    refused = {"hidden_size": 0, "position_embedding_type": "alibi", "lora_adaptations": tasks, "rope_scaling": 3}
    check_refused(AutoModel, TINY, refused)
