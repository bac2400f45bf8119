"""Fixtures of the tests of plug-ins: a tiny sentence encoder on the reference backend."""

import pytest

from bertcore import SentenceEncoder
from tests.tiny_bert import save_tiny_encoder, write_json


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference: what is tested here stands above the backends."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny encoder with a prompt for queries."""
    folder = save_tiny_encoder(tmp_path_factory.mktemp("plugins") / "encoder")
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "paris is "}})
    return folder


@pytest.fixture(scope="session")
def encoder(folder):
    """The tiny encoder."""
    return SentenceEncoder(folder)
