"""How much Python runs around the arrays: in a small batch it costs more than the arithmetic (kernels/program)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import bertcore
from bertcore import AutoModelForMaskedLM, kernels

FOLDERS = tuple(str(Path(package.__file__).parent) for package in (bertcore, kernels))
CONFIG = {
    "model_type": "bert",
    "vocab_size": 99,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}

# A little above what there is: who saves calls lowers them. Numba runs a kept program; at a shape that is new, it notes
# one operation after the other.
MOST_CALLS = {("numpy", (3, 8)): 672, ("numba", (3, 8)): 378, ("numba", (2, 11)): 1061}


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
