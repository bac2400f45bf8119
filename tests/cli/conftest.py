"""Fixtures of the command line's tests: tiny models, text on stdin."""

import io

import pytest

from tests.tiny_bert import save_tiny_bert, save_tiny_encoder


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """What a user's environment may say is not what is tested."""
    monkeypatch.delenv("BERTCORE_TRACEBACK", raising=False)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory):
    """A tiny sentence encoder."""
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def masked_lm_folder(tmp_path_factory):
    """A tiny model with the masked language model's head."""
    return save_tiny_bert(tmp_path_factory.mktemp("masked-lm"), head=True)


@pytest.fixture
def stdin(monkeypatch):
    """A function that puts bytes on stdin."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
