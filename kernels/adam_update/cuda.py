"""One step of Adam's family on CUDA, float32; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from . import RULES
from .numbers import Numbers

THREADS, ITEMS = 256, 16  # as in adam_update.cu
KERNELS = _cuda.Module(__file__, "adam_update.cu", ("adamw", "move_and_sum", "move_parameter"))
NUMBERS = np.dtype([(name, np.float32) for name in Numbers._fields])


def adam_update(sets, lr, betas, eps, weight_decay, step, rule):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first and second moment) of each."""
    for arrays in sets:
        _update(*arrays, lr, betas, eps, weight_decay, step, rule)


def _update(parameter, grad, first_moment, second_moment, lr, betas, eps, weight_decay, step, rule):
    if parameter.dtype != np.float32:
        raise TypeError(f"parameter has dtype {parameter.dtype}, expected float32: what is trained on CUDA is")
    if not parameter.size:
        return
    xp = _cuda.array_module(parameter)
    numbers = np.array(Numbers.at_step(parameter.dtype, lr, betas, eps, weight_decay, step), NUMBERS)[()]
    size, grad = np.int64(parameter.size), xp.ascontiguousarray(grad)
    if rule == "adamw":
        arrays = parameter, first_moment, second_moment, grad
        KERNELS.launch("adamw", (-(-parameter.size // THREADS),), (THREADS,), (*arrays, size, numbers))
        return
    grid, rule = (-(-parameter.size // (THREADS * ITEMS)),), np.int32(RULES.index(rule))
    sums = xp.empty((*grid, 2), np.float32)
    moments = first_moment, second_moment
    KERNELS.launch("move_and_sum", grid, (THREADS,), (parameter, *moments, grad, sums, size, numbers, rule))
    KERNELS.launch("move_parameter", grid, (THREADS,), (parameter, *moments, sums, size, numbers, rule))
