"""Gated activation as a step of a program: its record, what notes it and what runs it."""

import numpy as np

from .._numba import helper
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..activation_names import activation_code
from ..deferred import is_plain
from .cpu import GRAIN, forward_rows

STEP = record(
    ("input", ADDRESS),
    ("gate_first", np.bool_),
    ("activation", np.intp),
    ("rows", np.intp),
    ("width", np.intp),
    ("output", ADDRESS),
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
    )
    return output


@helper
def run_step(step, task, tasks):
    """Compute a task's share of the rows of a step."""
    rows, width = step.rows, step.width
    x, out = array_at(step.input, (2 * rows * width,), FLOAT), array_at(step.output, (rows * width,), FLOAT)
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    forward_rows(x, step.gate_first, step.activation, width, out, first, last)
