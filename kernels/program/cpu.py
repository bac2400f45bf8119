"""The compiled code that runs a program's steps, one parallel region after another, in one call.

An operation that can be a step defines in its cpu.py, its cpu/step.py or rows.py: `STEP`, the dtype of the records of
its steps, `deferred_<name>`, which records a step, and `run_step`, compiled code that runs one. All are listed here.
"""

import numpy as np

from .._numba import empty, kernel, num_threads, region
from .._numba.products import make_scratch
from .._numba.steps import filled
from ..attention.cpu import step as attention
from ..linear.cpu import step as linear
from ..rotary import cpu as rotary
from . import rows

__all__ = ["DEFERRED_FORMS", "StepTable", "empty"]

DEFERRED_FORMS = {
    "embedding": rows.deferred_embedding,
    "linear": linear.deferred_linear,
    "layer_norm": rows.deferred_layer_norm,
    "rms_norm": rows.deferred_rms_norm,
    "affine": rows.deferred_affine,
    "rotary": rotary.deferred_rotary,
    "gated_activation": rows.deferred_gated_activation,
    "attention": attention.deferred_attention,
}

_KINDS = linear.STEP, rows.STEP, rotary.STEP, attention.STEP
_LINEAR, _ROWS, _ROTARY, _ATTENTION = range(len(_KINDS))
_INDEX = np.dtype([("kind", np.int64), ("record", np.int64), ("tasks", np.int64)])
_LINE = 8  # int64; the counters of different steps share no cache line


class StepTable:
    """Steps in the form that compiled code reads: the kind of each, and its index among the records of that kind.

    `storage` is a typed scalar of the weights' storage, or None without weights.
    """

    def __init__(self, steps, storage):
        records = [[] for _ in _KINDS]
        numbers = {id(kind): number for number, kind in enumerate(_KINDS)}
        index = []
        for step in steps:
            number = numbers[id(step.kind)]
            index.append((number, len(records[number]), step.tasks))
            records[number].append(step.values)
        self._index = np.array(index, _INDEX)
        self._records = tuple(map(filled, _KINDS, records))
        self._rows = int(self._records[_LINEAR]["rows"].max(initial=0))
        self._counters = np.zeros((len(steps), _LINE), np.int64)
        storage = np.float32(0) if storage is None else storage  # there are no weights
        attention_storage = attention.STORAGE_BESIDE[type(storage)](0)
        self._storage = storage, attention_storage, attention.marker_of_steps(self._records[_ATTENTION])

    def run(self):
        """Run the steps in their order."""
        threads = num_threads()
        self._counters[:, 0], self._counters[:, 1] = 0, threads
        memory = self._counters, make_scratch(self._storage[0].dtype, threads, self._rows)
        _run(self._index, self._records, memory, *self._storage, threads)


@kernel(regions=True)
def _run(index, records, memory, storage, attention_storage, relative, tasks):
    for i in range(len(index)):
        count = min(index[i].tasks, tasks)
        if index[i].kind == _LINEAR and linear.has_two_phases(storage):
            _prepare(index, i, records, storage, count)
        _perform(index, i, records, memory, storage, attention_storage, relative, count)


@region
def _prepare(index, i, records, storage, task, tasks):
    linear.prepare_step(records[_LINEAR][index[i].record], storage, task, tasks)


@region
def _perform(index, i, records, memory, storage, attention_storage, relative, task, tasks):
    kind, record, counter = index[i].kind, index[i].record, memory[0][i]
    if kind == _LINEAR:
        linear.run_step(records[_LINEAR][record], counter, memory[1][task], storage)
    elif kind == _ROWS:
        rows.run_step(records[_ROWS][record], task, tasks)
    elif kind == _ROTARY:
        rotary.run_step(records[_ROTARY][record], task, tasks)
    elif kind == _ATTENTION:
        attention.run_step(records[_ATTENTION][record], counter, attention_storage, relative, task)
