"""One step of Adam's family on CUDA, float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.many import table_of
from . import RULES
from .numbers import Numbers

THREADS, ITEMS = 256, 16  # as in adam_update.cu
KERNELS = _cuda.Module(__file__, "adam_update.cu", ("adamw", "move_and_sum", "move_parameter", "scales_at_step"))
NUMBERS = np.dtype([(name, np.float32) for name in Numbers._fields])


def adam_update(sets, lr, betas, eps, weight_decay, step, rule, grad_scale):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first and second moment) of each.

    AdamW takes all of them in one launch. A `step` that is an array stays on the device.
    """
    dtype, scales = sets[0][0].dtype, None
    if dtype != np.float32:
        raise TypeError(f"parameter has dtype {dtype}, expected float32: what is trained on CUDA is")
    xp = _cuda.array_module(sets[0][0])
    if isinstance(step, int):
        numbers = Numbers.at_step(dtype, lr, betas, eps, weight_decay, step)
    else:
        numbers = Numbers.at_step(dtype, lr, betas, eps, weight_decay, 1)
        scales = xp.empty(2, dtype)
        KERNELS.launch("scales_at_step", (1,), (1,), (step.astype(np.int64), scales, *map(np.float64, betas)))
    known = np.array(numbers, NUMBERS)[()], scales, grad_scale
    sets = [(parameter, xp.ascontiguousarray(grad), *moments) for parameter, grad, *moments in sets]
    if rule == "adamw":
        table_of(sets).launch(KERNELS, "adamw", *known)
        return
    for arrays in sets:
        _update_by_sums(xp, *arrays, np.int32(RULES.index(rule)), *known)


def _update_by_sums(xp, parameter, grad, first_moment, second_moment, rule, numbers, scales, grad_scale):
    if not parameter.size:
        return
    grid, size = (-(-parameter.size // (THREADS * ITEMS)),), np.int64(parameter.size)
    sums, arrays = xp.empty((*grid, 2), np.float32), (parameter, first_moment, second_moment)
    known = sums, size, numbers, rule, scales, grad_scale
    KERNELS.launch("move_and_sum", grid, (THREADS,), (*arrays, grad, *known))
    KERNELS.launch("move_parameter", grid, (THREADS,), (*arrays, *known))
