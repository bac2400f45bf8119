"""Fixtures of training's tests."""

import pytest

from bertcore import AutoTokenizer
from tests.tiny_bert import save_tiny_bert


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """A tiny masked language model."""
    return save_tiny_bert(tmp_path_factory.mktemp("bert"), head=True)


@pytest.fixture(scope="session")
def tokenizer(bert_folder):
    """Its tokenizer, of `tests.tiny_bert`'s vocabulary."""
    return AutoTokenizer.from_pretrained(bert_folder)
