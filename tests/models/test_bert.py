"""BERT with every head against transformers."""

import numpy as np
import pytest

from tests.models.family_parity import check, random_batch

pytestmark = pytest.mark.parity
TASKS = (
    *(None, "MaskedLM", "PreTraining", "NextSentencePrediction", "SequenceClassification", "TokenClassification"),
    *("QuestionAnswering", "MultipleChoice"),
)


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    return transformers.BertConfig(**sizes | {"num_hidden_layers": 2, "max_position_embeddings": 24} | changes)


@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))
