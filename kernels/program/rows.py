"""Operations that compute row by row, as one kind of step: norms, `affine` and `gated_activation` in float32."""

import numpy as np

from .._numba import helper
from .._numba.norms import GRAIN
from .._numba.norms import forward_rows as norm_rows
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..activation_names import activation_code
from ..affine.cpu import forward_rows as affine_rows
from ..deferred import are_plain
from ..gated_activation.cpu import forward_rows as gated_rows

NORM, AFFINE, GATED_ACTIVATION = range(3)
STEP = record(
    ("operation", np.intp),
    ("input", ADDRESS),
    ("rows", np.intp),
    ("width", np.intp),  # of the output
    ("residual", ADDRESS),  # 0 if absent
    ("weight", ADDRESS),
    ("bias", ADDRESS),
    ("eps", np.float64),
    ("form", np.bool_),  # of a norm, whether it is centred; of a gate, whether it comes first
    ("activation", np.intp),
    ("output", ADDRESS),
)


def deferred_layer_norm(program, input, weight, bias, eps, residual):
    """Note a step of `layer_norm`; return None if that is impossible."""
    return _note_norm(program, input, weight, bias, eps, residual, True)


def deferred_rms_norm(program, input, weight, eps, residual):
    """Note a step of `rms_norm`; return None if that is impossible."""
    return _note_norm(program, input, weight, None, eps, residual, False)


def _note_norm(program, input, weight, bias, eps, residual, is_centred):
    width = input.shape[-1]
    weight = np.ones(width, np.float32) if weight is None else weight
    bias = np.zeros(width, np.float32) if bias is None else bias
    return _note(program, NORM, input, width, residual, weight, bias, eps=eps, form=is_centred)


def deferred_affine(program, input, weight, bias, residual):
    """Note a step of `affine`; return None if that is impossible."""
    return _note(program, AFFINE, input, input.shape[-1], residual, weight, bias)


def deferred_gated_activation(program, input, activation, gate):
    """Note a step of `gated_activation`; return None if that is impossible."""
    numbers = {"form": gate == "first", "activation": activation_code(activation)}
    return _note(program, GATED_ACTIVATION, input, input.shape[-1] // 2, **numbers)


def _note(
    program, operation, input, width, residual=None, weight=None, bias=None, *, eps=0.0, form=False, activation=0
):  # fmt: skip
    if not input.size or not are_plain(input, weight, bias, residual):
        return None
    output = program.empty((*input.shape[:-1], width), input.dtype)
    arrays = {"input": input, "residual": residual, "weight": weight, "bias": bias, "output": output}
    numbers = {"operation": operation, "rows": output.size // width, "width": width}
    numbers |= {"eps": eps, "form": form, "activation": activation}
    addresses = {name: program.address(array) for name, array in arrays.items()}
    program.note(STEP, task_count(output.size, GRAIN), **numbers, **addresses)
    return output


@helper
def run_step(step, task, tasks):
    """Compute a task's share of the rows of a step."""
    rows, width = step.rows, step.width
    first, last = share(rows, task, tasks), share(rows, task + 1, tasks)
    out = array_at(step.output, (rows * width,), FLOAT)
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
