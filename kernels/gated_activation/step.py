"""Gated activation as a step of a program: its record, what notes it and what runs it."""

import numpy as np

from .._numba import helper
from .._numba.low_precision.rounded_rows import HANDED, NOT_HANDED, ROOM_BESIDE, array_of_row, hand_row
from .._numba.rows import share, task_count
from .._numba.simd import pointer
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..activation_names import activation_code
from ..deferred import is_plain
from ..handed_rows import offer_rows
from .cpu import GRAIN, forward_rows

STEP = record(
    ("input", ADDRESS),
    ("gate_first", np.bool_),
    ("activation", np.intp),
    ("rows", np.intp),
    ("width", np.intp),
    ("output", ADDRESS),
    ("handed", HANDED),
)


def deferred_gated_activation(program, input, activation, gate):
    """Note the step of `gated_activation` of float32; None for what has no deferred form."""
    width = input.shape[-1] // 2
    if not input.size or not is_plain(input):
        return None
    output = program.empty((*input.shape[:-1], width), input.dtype)
    program.note(
        STEP,
        task_count(output.size, GRAIN),
        input=program.address(input),
        gate_first=gate == "first",
        activation=activation_code(activation),
        rows=output.size // width,
        width=width,
        output=program.address(output),
        handed=NOT_HANDED,
    )
    offer_rows(program, output, width, ROOM_BESIDE.get(type(program.storage)))
    return output


@helper
def run_step(step, storage, task, tasks):
    """A task's share of the rows of a step; `storage` is that of the program's weights."""
    rows, width, handed = step.rows, step.width, step.handed
    x = array_at(step.input, (2 * rows * width,), FLOAT)
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    for i in range(first, last):
        out = array_of_row(step.output, handed, i, first, rows, width)
        forward_rows(x, step.gate_first, step.activation, width, out, i, i + 1)
        hand_row(handed, storage, pointer(out, i * width), width, i)
