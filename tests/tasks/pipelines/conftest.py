"""Fixtures of the pipelines' tests: tiny models with heads, on Numba, where answers do not change with the batch."""

import pytest

from bertcore import use_backend
from tests.tasks.pipelines.folders import LABELS, TAGS, save_head
from tests.tiny_bert import VOCABULARY


@pytest.fixture(autouse=True)
def on_numba():
    """The backend of every test."""
    with use_backend("numba"):
        yield


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory):
    """A classifier of texts, with the labels of natural language inference."""
    return save_head(tmp_path_factory.mktemp("classifier"), "AutoModelForSequenceClassification", LABELS)


@pytest.fixture(scope="session")
def tagger_folder(tmp_path_factory):
    """A classifier of tokens."""
    return save_head(tmp_path_factory.mktemp("tagger"), "AutoModelForTokenClassification", TAGS)


@pytest.fixture(scope="session")
def masked_folder(tmp_path_factory):
    """A masked language model whose vocabulary is the tokenizer's."""
    folder = tmp_path_factory.mktemp("masked")
    return save_head(folder, "AutoModelForMaskedLM", vocab_size=len(VOCABULARY))


@pytest.fixture(scope="session")
def answering_folder(tmp_path_factory):
    """A model with question answering's head."""
    return save_head(tmp_path_factory.mktemp("answering"), "AutoModelForQuestionAnswering")
