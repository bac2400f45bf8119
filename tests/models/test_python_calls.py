"""How much Python runs around the arrays, which in a small batch costs more than the arithmetic; and what it asks."""

import sys
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, kernels, vjp
from tests.tiny_families import runnable, tiny_config

FOLDERS = tuple(str(Path(package.__file__).parent) for package in (bertcore, kernels))
CONFIG = {
    "model_type": "bert",
    "vocab_size": 99,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}

# A little above the counts: a change that saves calls lowers them. Numba runs a kept program; at a new shape it notes
# one operation after the other.
MOST_CALLS = {("numpy", (3, 8)): 400, ("numba", (3, 8)): 212, ("numba", (2, 11)): 561}
SETTINGS = 5  # the backend, autocast, the tape, the options of losses, kept scores


def calls_of(function):
    """How many of the package's own Python functions start, or go on, in one call of `function`."""
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


@pytest.mark.parametrize("backend, shape", MOST_CALLS)
def test_calls_of_a_masked_lm(backend, shape):
    model = AutoModelForMaskedLM.from_config(CONFIG)
    with kernels.use_backend(backend):
        for _ in range(3):  # compiled, noted and kept
            model(np.ones((3, 8), int))
        assert calls_of(lambda: model(np.ones(shape, int))) <= MOST_CALLS[backend, shape]


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
