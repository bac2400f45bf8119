"""One step of Adam's family on CUDA, float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.elements import THREADS, table_of
from . import RULES
from .reference import Numbers

INSTANTIATIONS = "adamw", "move_and_sum", "rates_of_rows", "move_parameter", "scales_at_step"
KERNELS = _cuda.Source(__file__, "adam_update.cu", INSTANTIATIONS)
NUMBERS = np.dtype([(name, np.float32) for name in Numbers._fields])


def adam_update(sets, lr, betas, eps, weight_decay, step, rule, grad_scale):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first moment, second moment) of each.

    AdamW takes one launch for all of them, the other rules three. A `step` that is an array stays on the device.
    """
    dtype, scales = sets[0][0].dtype, None
    xp = _cuda.array_module(sets[0][0])
    if isinstance(step, int):
        numbers = Numbers.at_step(dtype, lr, betas, eps, weight_decay, step)
    else:
        numbers = Numbers.at_step(dtype, lr, betas, eps, weight_decay, 1)
        scales = xp.empty(2, dtype)
        KERNELS.launch("scales_at_step", (1,), (1,), (step.astype(np.int64), scales, *map(np.float64, betas)))
    known = np.array(numbers, NUMBERS)[()], scales, grad_scale
    sets = [(parameter, xp.ascontiguousarray(grad), *moments) for parameter, grad, *moments in sets]
    table = table_of(sets)
    if rule == "adamw":
        table.launch(KERNELS, "adamw", *known)
    elif table.chunks:
        _update_by_sums(xp, table, np.int32(RULES.index(rule)), known)


def _update_by_sums(xp, table, rule, known):
    sums, rates = xp.empty((table.chunks, 2), np.float64), xp.empty(len(table.rows), np.float32)
    table.launch(KERNELS, "move_and_sum", *known, sums, rule)
    KERNELS.launch("rates_of_rows", (len(rates),), (THREADS,), (table.rows, known[0], sums, rates, rule))
    table.launch(KERNELS, "move_parameter", *known, rates)
