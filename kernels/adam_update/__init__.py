"""One step of Adam's family, in place: AdamW, StableAdamW and LAMB."""

from collections.abc import Sequence

import numpy as np

from .. import checks
from ..arrays import Array
from ..lists import open_lists

RULES = ("adamw", "stable_adamw", "lamb")


def adam_update(
    parameter: Array | Sequence[Array],
    grad: Array | Sequence[Array],
    first_moment: Array | Sequence[Array],
    second_moment: Array | Sequence[Array],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    step: int | Array,
    rule: str = "adamw",
    grad_scale: Array | None = None,
    backend: str | None = None,
) -> None:
    """Update `parameter` and its moments in place by one step.

        g = grad_scale * grad
        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  m' = m / (1 - b1^step),  v' = v / (1 - b2^step)
        u = m' / (sqrt(v') + eps) + weight_decay * parameter
        parameter -= rate * u

    "adamw" (Loshchilov and Hutter 2019, arXiv:1711.05101): rate is lr. "stable_adamw" (Wortsman et al. 2023,
    arXiv:2304.13013): lr / max(1, root mean of g^2 / max(v', eps^2)): small steps where gradients exceed their mean.
    "lamb" (You et al. 2020, arXiv:1904.00962): lr |parameter| / |u|, or lr where either norm is 0.

    The sums of the last two rules have the same bits with any number of threads.

    Args:
        parameter, first_moment, second_moment: arrays of one shape, C-contiguous and writable; float32 or float64 on
            Numba and NumPy, float32 on CUDA. Moments are zeros before the first step.
        grad: of the same shape and dtype; it is only read. All four may be lists of equal length, with the arrays of
            several parameters of one dtype; the result equals that of one call per parameter.
        lr: the learning rate, not negative.
        betas: the share of each moment that is kept, each at least 0 and below 1.
        eps: added to the root of the second moment, not negative.
        weight_decay: the weight of the parameter itself in the update, not negative.
        step: the number of this step, counted from 1; on CUDA also a 0-d integer array, which is not checked.
        rule: one of RULES.
        grad_scale: a 0-d array of the dtype of the others that multiplies `grad` (for example to clip it); if it is inf
            or NaN, nothing is changed. None for 1.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or number; nothing is changed then.
        BackendUnavailable: if the backend cannot run here.
    """
    lists = {"parameter": parameter, "grad": grad, "first_moment": first_moment, "second_moment": second_moment}
    if any(isinstance(each, list | tuple) for each in lists.values()) and not checks.of_one_length(**lists):
        return
    names = {"written": ["parameter", "first_moment", "second_moment"], "passing": ["grad"]}
    call, sets = open_lists(__package__, backend, lists, **names, grad_scale=grad_scale)
    *arrays, grad_scale = call.arrays
    if grad_scale is not None:
        checks.shape((), grad_scale=grad_scale)
    checks.choice("rule", rule, RULES)
    dtype = checks.dtype_of_moments(parameter=arrays[0])
    lr = checks.number_of(dtype, "lr", lr, minimum=0, may_vanish=True)  # schedules end there
    eps = checks.number_of(dtype, "eps", eps, minimum=0)
    weight_decay = checks.number_of(dtype, "weight_decay", weight_decay, minimum=0, may_vanish=True)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise (ValueError if isinstance(betas, tuple | list) else TypeError)(
            f"betas is {betas!r}, expected a pair of numbers"
        )
    betas = tuple(checks.probability(f"betas[{index}]", beta) for index, beta in enumerate(betas))
    if call.backend == "cupy" and hasattr(step, "shape") and not isinstance(step, np.generic):
        checks.integer(step=step)
        checks.shape((), step=step)
    else:
        step = checks.integer_number("step", step, minimum=1)
        if step >= 1 << 64:
            raise ValueError(f"step is an integer of {step.bit_length()} bits, expected one of at most 64")
    call.compute("adam_update", sets, lr, betas, eps, weight_decay, step, rule, grad_scale)
