"""Python calls around the arrays, which cost more than the arithmetic in a small batch."""

import sys
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, kernels, value_and_grad, vjp
from bertcore.training import AdamW, clip_grad_norm
from tests.tiny_bert import save_tiny_encoder
from tests.tiny_families import runnable, tiny_config

FOLDERS = tuple(str(Path(package.__file__).parent) for package in (bertcore, kernels))
CONFIG = {
    "model_type": "bert", "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip

# The most calls of one pass of a layer: a program that is kept, one that is noted anew, a pass operation by operation,
# gradients, and a training step with dropout.
MOST_CALLS = {"recorded": 130, "new layout": 600, "eager": 400, "gradients": 1400, "training step": 1900}
SETTINGS = 7  # the backend, autocast, the tape, the options of losses, kept scores and losses


def calls_of(function):
    """Return the number of the package's Python functions that start, or resume, in one call of `function`."""
    count = 0

    def note(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(FOLDERS)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def training_step(model):
    optimizer, batch = AdamW(model.train(seed=0), lr=1e-3), labelled(4)

    def step():
        _, grads = value_and_grad(model)(**batch)
        clip_grad_norm(grads, 1.0)
        optimizer.step(grads)

    return step


def labelled(texts):
    return {"input_ids": np.ones((texts, 8), int), "labels": np.ones((texts, 8), int)}


@pytest.mark.parametrize("kind", MOST_CALLS)
def test_calls_of_a_masked_lm(kind):
    with kernels.use_backend("numba"):
        model, ids = AutoModelForMaskedLM.from_config(CONFIG), np.ones((3, 8), int)
        run = {
            "recorded": lambda: model(ids),
            "new layout": lambda: model(ids),
            "eager": lambda: model(ids, output_hidden_states=True),
            "gradients": lambda: value_and_grad(model)(**labelled(3)),
            "training step": training_step(model) if kind == "training step" else None,
        }[kind]
        for _ in range(3):  # compiled, noted and kept
            run()
        measured = (lambda: model(np.ones((2, 11), int))) if kind == "new layout" else run
        assert calls_of(measured) <= MOST_CALLS[kind]


def test_calls_of_encoding_a_text(tmp_path):
    encoder = bertcore.SentenceEncoder(save_tiny_encoder(tmp_path, normalize=True))
    with kernels.use_backend("numba"):
        for _ in range(3):
            encoder.encode("a text")
        assert calls_of(lambda: encoder.encode("a text")) <= 145


def settings_read(function):
    """Return the file and line of each read of a ContextVar by the package in one call of `function`."""
    found = []

    def note(frame, event, read):
        is_read = event == "c_call" and isinstance(getattr(read, "__self__", None), ContextVar)
        if is_read and read.__name__ == "get" and frame.f_code.co_filename.startswith(FOLDERS):
            found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("name", runnable())
def test_settings_are_read_once_where_a_pass_begins(name):
    with kernels.use_backend("numpy"):
        model = AutoModel.from_config(tiny_config(name))
        ids, gradient = np.arange(12).reshape(2, 6) + 3, {}
        for options in ({}, {"output_attentions": True}, {"output_hidden_states": True}):
            found = settings_read(lambda options=options: model(ids, **options))
            assert len(found) == SETTINGS, found
        out, pullback = vjp(model.train(seed=1))(ids)
        gradient = {"last_hidden_state": np.ones_like(out.last_hidden_state)}
        assert len(settings_read(lambda: vjp(model)(ids))) == SETTINGS
        found = settings_read(lambda: pullback(gradient))
        assert len(found) == 1, found  # the factor of the gradients
