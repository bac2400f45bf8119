"""Fixtures of the command line's tests: tiny models, text on stdin."""

import io
import signal
from unittest import mock

import pytest

from bertcore.training.run import Run
from tests.tasks.pipelines.folders import LABELS, TAGS, save_head
from tests.tiny_bert import CONFIG, save_tiny_bert, save_tiny_encoder, write_json


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


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of tiny models with heads, by the names of these, and the config of one."""
    place = tmp_path_factory.mktemp("models")
    save_head(place / "classifier", "AutoModelForSequenceClassification", LABELS)
    save_head(place / "reranker", "AutoModelForSequenceClassification", {"0": "score"})
    save_head(place / "tagger", "AutoModelForTokenClassification", TAGS)
    save_head(place / "reader", "AutoModelForQuestionAnswering")
    save_tiny_bert(place / "lm", head=True)
    save_tiny_encoder(place / "encoder")
    write_json(place / "bert.json", CONFIG)
    return place


@pytest.fixture
def interrupted(ctrl_c):
    """A function that makes a block in which Ctrl-C comes after the second step of a run."""
    step = Run._step

    def step_and_ctrl_c(run, part):
        step(run, part)
        if run.state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    return lambda: mock.patch.object(Run, "_step", step_and_ctrl_c)


@pytest.fixture
def stdin(monkeypatch):
    """A function that puts bytes on stdin."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
