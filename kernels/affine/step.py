"""A scale and a shift as a step of a program: its record, what notes it and what runs it."""

import numpy as np

from .._numba import helper
from .._numba.low_precision.rounded_rows import HANDED, NOT_HANDED, ROOM_BESIDE, array_of_row, hand_row
from .._numba.rows import share, task_count
from .._numba.simd import pointer
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..deferred import is_plain
from ..handed_rows import offer_rows
from .cpu import GRAIN, forward_rows

STEP = record(
    ("input", ADDRESS),
    ("rows", np.intp),
    ("width", np.intp),
    ("residual", ADDRESS),  # 0 if it is absent
    ("weight", ADDRESS),
    ("bias", ADDRESS),
    ("output", ADDRESS),
    ("handed", HANDED),
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
        handed=NOT_HANDED,
        **{name: program.address(array) for name, array in arrays.items()},
    )
    offer_rows(program, output, width, ROOM_BESIDE.get(type(program.storage)))
    return output


@helper
def run_step(step, storage, task, tasks):
    """A task's share of the rows of a step; `storage` is that of the program's weights."""
    rows, width, handed = step.rows, step.width, step.handed
    x = array_at(step.input, (rows * width,), FLOAT)
    residual = array_at(step.residual, (rows * width if step.residual != 0 else 0,), FLOAT)
    weight, bias = array_at(step.weight, (width,), FLOAT), array_at(step.bias, (width,), FLOAT)
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    for i in range(first, last):
        out = array_of_row(step.output, handed, i, first, rows, width)
        forward_rows(x, residual, weight, bias, out, i, i + 1)
        hand_row(handed, storage, pointer(out, i * width), width, i)
