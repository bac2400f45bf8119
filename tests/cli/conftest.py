"""Fixtures of the command line's tests: tiny models, text on stdin."""

import io
import signal
from unittest import mock

import pytest

from bertcore import AutoModelForCausalLM, AutoTokenizer
from bertcore.training.callbacks import Callbacks
from tests.tasks.pipelines.folders import LABELS, TAGS, save_head
from tests.tiny_bert import CONFIG, save_tiny_bert, save_tiny_encoder, write_json
from tests.tiny_families import tiny_config
from tests.tokenization.family_folders import write_family


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Hide the user's own settings."""
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
    (place / "gpt2").mkdir()
    write_family(place / "gpt2", "GPT2Tokenizer")
    sizes = {"vocab_size": len(AutoTokenizer.from_pretrained(place / "gpt2")), "eos_token_id": 0, "bos_token_id": 0}
    AutoModelForCausalLM.from_config(tiny_config("gpt2") | sizes, seed=3).save_pretrained(place / "gpt2")
    return place


@pytest.fixture
def interrupted(ctrl_c):
    """A function that makes a block in which Ctrl-C comes after the second step of a run."""
    call = Callbacks.call

    def call_and_ctrl_c(callbacks, event, args, state, *now, **details):
        call(callbacks, event, args, state, *now, **details)
        if event == "on_step_end" and state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    return lambda: mock.patch.object(Callbacks, "call", call_and_ctrl_c)


@pytest.fixture
def stdin(monkeypatch):
    """A function that puts bytes on stdin."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
