"""Fixtures of SentenceEncoder's tests: a tiny encoder, and the backend."""

import pytest

from bertcore import SentenceEncoder
from tests.tiny_bert import save_tiny_encoder


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference, unless a test chooses: what is tested here stands above the backends."""


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    """A tiny encoder's folder: mean pooling, no normalisation."""
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="package")
def encoder(folder):
    """A tiny encoder."""
    return SentenceEncoder(folder)
