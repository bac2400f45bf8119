"""The compiled code that runs a program's steps, one parallel region after another, in one call."""

import numpy as np
from numba import prange, types
from numba.extending import overload

from .._numba import helper, kernel, num_threads
from .._numba.steps import ATTENTION, FIELDS, LAYER_NORM, LINEAR, OPTIONS, RELATIVE_ATTENTION
from ..attention.cpu import ATTENTION_WORDS
from ..attention.forward import run_step as run_attention
from ..layer_norm.cpu import run_step as run_layer_norm
from ..linear.cpu import has_two_phases
from ..linear.cpu import prepare_step as prepare_linear
from ..linear.cpu import run_step as run_linear
from ..relative_attention.forward import run_step as run_relative_attention

_LINE = 8  # int64: counters of different steps share no cache line


class StepTable:
    """Steps as compiled code reads them: (operation, tasks, what the operation takes ...).

    `word`, a typed scalar, says what the weights are stored as; None if there are none.
    """

    def __init__(self, steps, word):
        self._table = np.zeros((len(steps), FIELDS), np.int64)
        for row, step in zip(self._table, steps, strict=True):
            row[: len(step)] = step
        self._counters = np.zeros((len(steps), _LINE), np.int64)
        word = np.float32(0) if word is None else word  # there are no weights
        attention_word = ATTENTION_WORDS[type(word)](0)
        has_relative = any(step[0] == RELATIVE_ATTENTION for step in steps)
        self._words = word, attention_word, attention_word if has_relative else None

    def run(self):
        """Run the steps in their order."""
        self._counters.fill(0)
        _run(self._table, self._counters, *self._words, num_threads())


@kernel(parallel=True)
def _run(steps, counters, word, attention_word, relative_word, tasks):
    for i in range(len(steps)):
        if tasks == 1 or steps[i, 1] == 1:
            if has_two_phases(word) and steps[i, 0] == LINEAR:
                prepare_linear(steps[i], word, 0, 1)
            _perform(steps[i], counters[i], word, attention_word, relative_word, 0, 1)
        else:
            if has_two_phases(word) and steps[i, 0] == LINEAR:
                for task in prange(tasks):
                    prepare_linear(steps[i], word, task, tasks)
            for task in prange(tasks):
                _perform(steps[i], counters[i], word, attention_word, relative_word, task, tasks)


@helper
def _perform(step, counter, word, attention_word, relative_word, task, tasks):
    if step[0] == LINEAR:
        run_linear(step, counter, word)
    elif step[0] == LAYER_NORM:
        run_layer_norm(step, task, tasks)
    elif step[0] == ATTENTION:
        run_attention(step, counter, attention_word)
    elif step[0] == RELATIVE_ATTENTION:
        _run_relative(step, counter, relative_word)


def _run_relative(step, counter, word):
    """Attention with relative positions; no word, and no code, for programs without it: it takes seconds to compile."""
    raise NotImplementedError("for compiled code")


@overload(_run_relative, jit_options=OPTIONS)
def _run_relative_or_nothing(step, counter, word):
    if isinstance(word, types.NoneType):
        return lambda step, counter, word: None
    return lambda step, counter, word: run_relative_attention(step, counter, word)
