"""Layer norm on the CPU: the kernels of _numba/norms.py."""

import numpy as np

from .._numba import helper
from .._numba.norms import GRAIN, forward_rows, normalise, normalise_backward
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, FLOAT, array_at, record
from ..deferred import are_plain


def layer_norm(input, weight, bias, eps, residual):
    """Return the layer norm of input + residual, (..., width); weight and bias are (width,) or None."""
    return normalise(input, weight, bias, eps, residual, True)


def layer_norm_backward(grad_output, input, weight, bias, eps, residual, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None); statistics are computed again."""
    grad_input, grad_weight, grad_bias = normalise_backward(grad_output, input, weight, eps, residual, True)
    return grad_input, None if weight is None else grad_weight, None if bias is None else grad_bias


# --- as a step of a program -------------------------------------------------------------------------------------------

STEP = record(
    ("input", ADDRESS),
    ("rows", np.intp),
    ("width", np.intp),
    ("residual", ADDRESS),  # 0 if absent
    ("weight", ADDRESS),
    ("bias", ADDRESS),
    ("eps", np.float64),
    ("centred", np.bool_),
    ("output", ADDRESS),
)


def deferred_layer_norm(program, input, weight, bias, eps, residual):
    """Note a step of `layer_norm` in float32; return None if that is impossible."""
    return _deferred_norm(program, input, weight, bias, eps, residual, True)


def deferred_rms_norm(program, input, weight, eps, residual):
    """Note a step of `rms_norm` in float32; return None if that is impossible."""
    return _deferred_norm(program, input, weight, None, eps, residual, False)


def _deferred_norm(program, input, weight, bias, eps, residual, centred):
    if not input.size or not are_plain(input, weight, bias, residual):
        return None
    output, width = program.empty(input.shape, input.dtype), input.shape[-1]
    weight = np.ones(width, np.float32) if weight is None else weight
    bias = np.zeros(width, np.float32) if bias is None else bias
    arrays = {"input": input, "residual": residual, "weight": weight, "bias": bias, "output": output}
    program.note(
        STEP,
        task_count(input.size, GRAIN),
        rows=input.size // width,
        width=width,
        eps=eps,
        centred=centred,
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
    forward_rows(x, residual, (weight, bias), out, width, step.eps, step.centred, first, last)
