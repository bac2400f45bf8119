"""The compiled code that runs a program's steps, one parallel region after another, in one call."""

import numpy as np
from numba import prange, types
from numba.extending import overload

from .._numba import helper, kernel, num_threads
from .._numba.steps import ATTENTION, FIELDS, LAYER_NORM, LINEAR, OPTIONS, RELATIVE_ATTENTION
from ..attention.forward import run_step as run_attention
from ..attention.relative_forward import run_step as run_relative_attention
from ..attention.views import ATTENTION_STORAGE
from ..layer_norm.cpu import run_step as run_layer_norm
from ..linear.cpu import has_two_phases
from ..linear.cpu import prepare_step as prepare_linear
from ..linear.cpu import run_step as run_linear

_LINE = 8  # int64: counters of different steps share no cache line


class StepTable:
    """Steps as compiled code reads them: (operation, tasks, what the operation takes ...).

    `storage`, a typed scalar, says what the weights are stored as; None if there are none.
    """

    def __init__(self, steps, storage):
        self._table = np.zeros((len(steps), FIELDS), np.int64)
        for row, step in zip(self._table, steps, strict=True):
            row[: len(step)] = step
        self._counters = np.zeros((len(steps), _LINE), np.int64)
        storage = np.float32(0) if storage is None else storage  # there are no weights
        attention_storage = ATTENTION_STORAGE[type(storage)](0)
        has_relative = any(step[0] == RELATIVE_ATTENTION for step in steps)
        self._storage = storage, attention_storage, attention_storage if has_relative else None

    def run(self):
        """Run the steps in their order."""
        self._counters.fill(0)
        _run(self._table, self._counters, *self._storage, num_threads())


@kernel(parallel=True)
def _run(steps, counters, storage, attention_storage, relative_storage, tasks):
    for i in range(len(steps)):
        if tasks == 1 or steps[i, 1] == 1:
            if has_two_phases(storage) and steps[i, 0] == LINEAR:
                prepare_linear(steps[i], storage, 0, 1)
            _perform(steps[i], counters[i], storage, attention_storage, relative_storage, 0, 1)
        else:
            if has_two_phases(storage) and steps[i, 0] == LINEAR:
                for task in prange(tasks):
                    prepare_linear(steps[i], storage, task, tasks)
            for task in prange(tasks):
                _perform(steps[i], counters[i], storage, attention_storage, relative_storage, task, tasks)


@helper
def _perform(step, counter, storage, attention_storage, relative_storage, task, tasks):
    if step[0] == LINEAR:
        run_linear(step, counter, storage)
    elif step[0] == LAYER_NORM:
        run_layer_norm(step, task, tasks)
    elif step[0] == ATTENTION:
        run_attention(step, counter, attention_storage)
    elif step[0] == RELATIVE_ATTENTION:
        _run_relative(step, counter, relative_storage)


def _run_relative(step, counter, storage):
    """Attention with relative positions; storage None, and no code, without it: it takes seconds to compile."""
    raise NotImplementedError("for compiled code")


@overload(_run_relative, jit_options=OPTIONS)
def _run_relative_or_nothing(step, counter, storage):
    if isinstance(storage, types.NoneType):
        return lambda step, counter, storage: None
    return lambda step, counter, storage: run_relative_attention(step, counter, storage)
