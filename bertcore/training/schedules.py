"""Learning-rate schedules: a factor from 0 to 1 on the optimiser's rates for each step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from bertcore.arguments import check_number
from bertcore.kernels import checks
from bertcore.training.optimizers import Optimizer


def _progress(position: float, total: float) -> float:
    return min(1.0, position / total) if total > 0 else float(position > 0)


def _constant(position: float, total: float) -> float:
    return 1.0


def _linear(position: float, total: float) -> float:
    return 1 - _progress(position, total)


def _cosine(position: float, total: float, *, num_cycles: float = 0.5) -> float:
    return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * num_cycles * _progress(position, total))))


def _polynomial(position: float, total: float, *, power: float = 1.0, end: float = 0.0) -> float:
    return end + (1 - end) * (1 - _progress(position, total)) ** power


def _warmup_stable_decay(position: float, total: float, *, decay: float = 0.1, end: float = 0.0) -> float:
    """Return 1 until the last fraction `decay`, then fall linearly (Hu et al. 2024, arXiv:2404.06395)."""
    first = (1 - decay) * total
    return 1.0 if position < first else end + (1 - end) * (1 - _progress(position - first, total - first))


SCHEDULES: Mapping[str, Callable[..., float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "polynomial": _polynomial,
    "warmup_stable_decay": _warmup_stable_decay,
}

_RANGES = {"num_cycles": (0, 1000), "power": (0, 1000), "decay": (0, 1), "end": (0, 1)}


class Schedule:
    """Sets the rate of each group of an optimiser: its initial rate times a factor of the steps made.

    The first step has the factor of 0 steps: 0 with a warm-up.

    Args:
        optimizer: its groups' `lr` are set at once and at every `step`.
        factor: maps a position to the factor.

    Attributes:
        position: the number of steps made, or another measure of progress (seconds, see `move_to`).
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[float], float]):
        self.optimizer, self.factor = optimizer, factor
        self.move_to(0)

    def step(self) -> None:
        """Set the rates of the next step; called after the optimiser's step."""
        self.move_to(self.position + 1)

    def move_to(self, position: float) -> None:
        """Set the rates of this position."""
        self.position = position
        for group in self.optimizer.groups:
            group.lr = group.initial_lr * self.factor(position)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises TypeError or ValueError for an invalid position."""
        self.move_to(check_number("position", state.get("position")))


def get_scheduler(
    name: str, optimizer: Optimizer, *, num_warmup_steps: int = 0, num_training_steps: int | None = None, **options: Any
) -> Schedule:
    """Return a schedule by name, after a linear warm-up from 0.

    Args:
        name: "constant"; "linear", down to 0; "cosine" (`num_cycles`, 0.5 by default: down to 0); "polynomial"
            (`power`, 1 by default, and `end`, the last factor); "warmup_stable_decay", full until the last fraction
            (`decay`, 0.1 by default) of the steps after the warm-up, then down to `end`.
        optimizer: its rates are set.
        num_warmup_steps: the steps of the warm-up.
        num_training_steps: all steps, the warm-up included; "constant" needs none.
        options: of the schedule.

    Raises:
        TypeError, ValueError: for an unknown name or option, and wrong numbers of steps.
    """
    if num_training_steps is None:
        if name in SCHEDULES and name != "constant":
            raise ValueError(f"num_training_steps is missing: {name} ends with them")
        num_training_steps = num_warmup_steps
    for label, steps in (("num_warmup_steps", num_warmup_steps), ("num_training_steps", num_training_steps)):
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise ValueError(f"{label} is {steps!r}, expected an integer of at least 0")
    return Schedule(optimizer, schedule_factor(name, num_warmup_steps, num_training_steps, **options))


def schedule_factor(name: str, warmup: float, total: float, **options: Any) -> Callable[[float], float]:
    """Return the factor of a schedule by the position in a run of `total` steps or seconds; see `get_scheduler`."""
    checks.choice("name", name, SCHEDULES)
    schedule = SCHEDULES[name]
    known = schedule.__kwdefaults__ or {}
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}{'; it has ' + ', '.join(known) if known else ''}")
    for option, value in options.items():
        least, most = _RANGES[option]
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{option} is {value!r}, expected a number from {least} to {most}")

    return functools.partial(_factor, schedule, warmup, total, options)  # unlike a closure it can be pickled


def _factor(
    schedule: Callable[..., float], warmup: float, total: float, options: Mapping[str, float], position: float
) -> float:
    if position < warmup:
        return position / warmup
    return schedule(position - warmup, total - warmup, **options)
