"""A scale and a shift as a step of a program: its record, what notes it and what runs it."""

import numpy as np

from .._numba import helper
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..deferred import is_plain
from .cpu import GRAIN, forward_rows

STEP = record(
    ("input", ADDRESS),
    ("rows", np.intp),
    ("width", np.intp),
    ("residual", ADDRESS),  # 0 if it is absent
    ("weight", ADDRESS),
    ("bias", ADDRESS),
    ("output", ADDRESS),
)


def deferred_affine(program, input, weight, bias, residual):
    """Note the step of `affine` of float32; None for what has no deferred form."""
    if not input.size or not all(map(is_plain, (input, weight, bias, residual))):
        return None
    output, width = program.empty(input.shape, input.dtype), input.shape[-1]
    arrays = {"input": input, "residual": residual, "weight": weight, "bias": bias, "output": output}
    program.note(
        STEP,
        task_count(input.size, GRAIN),
        rows=input.size // width,
        width=width,
        **{name: program.address(array) for name, array in arrays.items()},
    )
    return output


@helper
def run_step(step, task, tasks):
    """Compute a task's share of the rows of a step."""
    rows, width = step.rows, step.width
    x, out = array_at(step.input, (rows * width,), FLOAT), array_at(step.output, (rows * width,), FLOAT)
    residual = array_at(step.residual, (rows * width if step.residual != 0 else 0,), FLOAT)
    weight, bias = array_at(step.weight, (width,), FLOAT), array_at(step.bias, (width,), FLOAT)
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    forward_rows(x, residual, weight, bias, out, first, last)
