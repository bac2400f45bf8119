"""The compiled code that runs a program's steps, one parallel region after another, in one call.

An operation that can be a step defines in its cpu.py (or cpu/step.py): `STEP`, the dtype of the records of its steps,
`deferred_<name>`, which records a step, and `run_step`, compiled code that runs one. All are listed here.

Operations that compute row by row are one kind of step, defined here: `embedding`, norms, `affine` and
`gated_activation`. All compute in float32; a table of embeddings may be bfloat16.
"""

import numpy as np

from .._numba import empty, helper, kernel, num_threads, region
from .._numba.norms import GRAIN
from .._numba.norms import forward_rows as norm_rows
from .._numba.products import make_scratch
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, BFLOAT16, FLOAT, INT64, UINT8, UINT32, array_at, filled, record
from ..activation_names import activation_code
from ..affine.cpu import forward_rows as affine_rows
from ..arrays import is_bfloat16
from ..attention import cpu as attention
from ..deferred import Deferred, are_plain
from ..embedding.cpu import gather_rows
from ..gated_activation.cpu import forward_rows as gated_rows
from ..linear.cpu import step as linear
from ..rotary import cpu as rotary

__all__ = ["DEFERRED_FORMS", "StepTable", "empty"]

NORM, AFFINE, GATED_ACTIVATION, EMBEDDING = range(4)
ROW_STEP = record(
    ("operation", np.intp),
    ("input", ADDRESS),
    ("rows", np.intp),
    ("width", np.intp),  # of the output
    ("residual", ADDRESS),  # 0 if absent
    ("weight", ADDRESS),
    ("bias", ADDRESS),
    ("eps", np.float64),
    ("form", np.bool_),  # whether a norm is centred, a gate comes first, or a table is bfloat16
    ("activation", np.intp),
    ("stride", np.intp),  # of a table's rows, in bytes
    ("output", ADDRESS),
)


def deferred_embedding(program, input, weight):
    """Record a step of `embedding` for int64 ids; return None if that is impossible."""
    is_half = is_bfloat16(weight.dtype)
    if type(input) is not Deferred or type(weight) is Deferred or not (is_half or weight.dtype == np.float32):
        return None
    if not input.size or weight.strides[1] != weight.itemsize:
        return None
    output = program.empty((*input.shape, weight.shape[1]), np.float32)
    return _note_step(program, EMBEDDING, input, output, weight=weight, form=is_half, stride=weight.strides[0])


def deferred_layer_norm(program, input, weight, bias, eps, residual):
    """Record a step of `layer_norm`; return None if that is impossible."""
    return _note_norm(program, input, weight, bias, eps, residual, True)


def deferred_rms_norm(program, input, weight, eps, residual):
    """Record a step of `rms_norm`; return None if that is impossible."""
    return _note_norm(program, input, weight, None, eps, residual, False)


def _note_norm(program, input, weight, bias, eps, residual, is_centred):
    width = input.shape[-1]
    weight = np.ones(width, np.float32) if weight is None else weight
    bias = np.zeros(width, np.float32) if bias is None else bias
    return _note(program, NORM, input, width, residual=residual, weight=weight, bias=bias, eps=eps, form=is_centred)


def deferred_affine(program, input, weight, bias, residual):
    """Record a step of `affine`; return None if that is impossible."""
    return _note(program, AFFINE, input, input.shape[-1], residual=residual, weight=weight, bias=bias)


def deferred_gated_activation(program, input, activation, gate):
    """Record a step of `gated_activation`; return None if that is impossible."""
    numbers = {"form": gate == "first", "activation": activation_code(activation)}
    return _note(program, GATED_ACTIVATION, input, input.shape[-1] // 2, **numbers)


def _note(program, operation, input, width, *, residual=None, weight=None, bias=None, **numbers):
    if not input.size or not are_plain(input, weight, bias, residual):
        return None
    output = program.empty((*input.shape[:-1], width), input.dtype)
    return _note_step(program, operation, input, output, residual, weight, bias, **numbers)


def _note_step(program, operation, input, output, residual=None, weight=None, bias=None, **numbers):
    arrays = {"input": input, "residual": residual, "weight": weight, "bias": bias, "output": output}
    addresses = {name: 0 if array is None else program.address(array) for name, array in arrays.items()}
    width = output.shape[-1]
    numbers = {"eps": 0.0, "form": False, "activation": 0, "stride": 0} | numbers
    numbers |= {"operation": operation, "rows": output.size // width, "width": width}
    program.record(ROW_STEP, task_count(output.size, GRAIN), **numbers, **addresses)
    return output


@helper
def _run_row_step(step, task, tasks):
    """Compute a task's share of the rows of a step of these."""
    rows, width = step.rows, step.width
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    out = array_at(step.output, (rows * width,), FLOAT)
    if step.operation == EMBEDDING:
        ids = array_at(step.input, (rows,), INT64)
        if step.form:
            halves = array_at(step.output, (rows * width,), UINT32)
            gather_rows(step.weight, step.stride, BFLOAT16, ids, halves, first, last)
        else:  # bytes need no alignment: a file may be mapped at an odd address
            whole = array_at(step.output, (4 * rows * width,), UINT8)
            gather_rows(step.weight, step.stride, UINT8, ids, whole, first, last)
        return
    if step.operation == GATED_ACTIVATION:
        x = array_at(step.input, (2 * rows * width,), FLOAT)
        gated_rows(x, step.form, step.activation, width, out, first, last)
        return
    x = array_at(step.input, (rows * width,), FLOAT)
    residual = array_at(step.residual, (rows * width if step.residual != 0 else 0,), FLOAT)
    weight, bias = array_at(step.weight, (width,), FLOAT), array_at(step.bias, (width,), FLOAT)
    if step.operation == AFFINE:
        affine_rows(x, residual, weight, bias, out, first, last)
    else:
        norm_rows(x, residual, (weight, bias), out, width, step.eps, step.form, first, last)


DEFERRED_FORMS = {
    "embedding": deferred_embedding,
    "linear": linear.deferred_linear,
    "layer_norm": deferred_layer_norm,
    "rms_norm": deferred_rms_norm,
    "affine": deferred_affine,
    "rotary": rotary.deferred_rotary,
    "gated_activation": deferred_gated_activation,
    "attention": attention.deferred_attention,
}

_KINDS = linear.STEP, ROW_STEP, rotary.STEP, attention.FORWARD
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
        _run_row_step(records[_ROWS][record], task, tasks)
    elif kind == _ROTARY:
        rotary.run_step(records[_ROTARY][record], task, tasks)
    elif kind == _ATTENTION:
        attention.run_step(records[_ATTENTION][record], counter, attention_storage, relative, task)
