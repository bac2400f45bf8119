"""Learning-rate schedules with transformers' names: a factor on the optimiser's rates for each step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bertcore.arguments import check_count, check_number
from bertcore.kernels import checks
from bertcore.training.optimizers import Optimizer


class _Run(NamedTuple):
    """The warm-up and the total, both in steps or seconds, and the optimiser's rate."""

    warmup: float
    total: Any  # None without an end
    lr: float

    def progress(self, position: float) -> float:
        """Return the fraction of the run after the warm-up that is done; 1 beyond the end, unlike in transformers."""
        rest = self.total - self.warmup
        return min(1.0, (position - self.warmup) / rest) if rest > 0 else float(position > self.warmup)


def _cosine_with_restarts(position: float, run: _Run, *, num_cycles: int = 1) -> float:
    progress = run.progress(position)
    return 0.0 if progress >= 1 else max(0.0, _wave(num_cycles * progress % 1 / 2))


def _cosine_with_min_lr(
    position: float,
    run: _Run,
    *,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> float:
    least = _least(run, min_lr, min_lr_rate)
    return max(0.0, least + (1 - least) * _wave(num_cycles * run.progress(position)))


def _least(run: _Run, min_lr: float | None, min_lr_rate: float | None) -> float:
    """Return the factor of the lowest rate."""
    if (min_lr is None) == (min_lr_rate is None):
        raise ValueError(f"min_lr is {min_lr} and min_lr_rate is {min_lr_rate}, expected one of them")
    if min_lr is not None and min_lr >= run.lr:
        raise ValueError(f"min_lr is {min_lr}, expected less than the learning rate, {run.lr}")
    return (min_lr or 0.0) / run.lr if min_lr_rate is None else min_lr_rate


def _cosine_warmup_with_min_lr(
    position: float,
    run: _Run,
    *,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> float:
    least = _least(run, min_lr, min_lr_rate)
    if position < run.warmup:
        if warmup_lr_rate is None:
            return min(1.0, (position + 1) / max(1.0, run.warmup))
        return min(1.0, warmup_lr_rate + (1 - warmup_lr_rate) * position / max(1.0, run.warmup - 1))
    progress = min(1.0, (position - run.warmup + 1) / max(1.0, run.total - run.warmup))
    return max(0.0, least + (1 - least) * _wave(num_cycles * progress))


def _polynomial(position: float, run: _Run, *, lr_end: float = 1e-7, power: float = 1.0) -> float:
    if lr_end >= run.lr:
        raise ValueError(f"lr_end is {lr_end}, expected less than the learning rate, {run.lr}")
    return (lr_end + (run.lr - lr_end) * (1 - run.progress(position)) ** power) / run.lr


def _inverse_sqrt(position: float, run: _Run, *, timescale: float | None = None) -> float:
    scale = timescale or run.warmup or 10_000
    return 1 / math.sqrt((position - run.warmup + scale) / scale)


def _warmup_stable_decay(
    position: float,
    run: _Run,
    *,
    num_decay_steps: float = 0.1,
    num_stable_steps: float | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    """Hu et al. 2024, arXiv:2404.06395."""
    decay = steps_of(num_decay_steps, run.total)
    stable = run.total - run.warmup - decay if num_stable_steps is None else steps_of(num_stable_steps, run.total)
    left = position - run.warmup - stable
    factor = 0.0
    if position < run.warmup:
        done = position / run.warmup
        factor = {"linear": done, "cosine": 1 - _wave(done / 2), "1-sqrt": 1 - math.sqrt(1 - done)}[warmup_type]
    elif left < 0:
        factor = 1.0
    elif left < decay:
        done = left / decay
        factor = {"linear": 1 - done, "cosine": _wave(num_cycles * done), "1-sqrt": 1 - math.sqrt(done)}[decay_type]
    return max(0.0, min_lr_ratio + (1 - min_lr_ratio) * factor)


def _reduce_lr_on_plateau(
    metrics: Sequence[float],
    run: _Run,
    *,
    mode: str = "min",
    factor: float = 0.1,
    patience: int = 10,
    threshold: float = 1e-4,
    threshold_mode: str = "rel",
    cooldown: int = 0,
    min_lr: float = 0.0,
    eps: float = 1e-8,
) -> float:
    """Return the factor after these values of a metric, as torch.optim.lr_scheduler.ReduceLROnPlateau."""
    sign = 1 if mode == "min" else -1
    best, failures, resting, rate = sign * math.inf, 0, 0, run.lr
    for value in metrics:
        bar = best * (1 - sign * threshold) if threshold_mode == "rel" else best - sign * threshold
        best, failures = (value, 0) if sign * value < sign * bar else (best, failures + 1)
        if resting > 0:
            resting, failures = resting - 1, 0
        if failures > patience:
            lower = max(rate * factor, min_lr)
            rate, resting, failures = lower if rate - lower > eps else rate, cooldown, 0
    return rate / run.lr if run.lr else 1.0


def _greedy(
    metrics: Sequence[float],
    run: _Run,
    *,
    mode: str = "min",
    factor: float = 0.95,
    patience: int = 10,
    threshold: float = 1e-6,
    threshold_mode: str = "abs",
    cooldown: int = 0,
    warmup: int = 0,
    min_lr: float = 1e-3,
    max_lr: float = 1.0,
    eps: float = 1e-8,
    smooth: bool = False,
    window_size: int = 50,
    reset_start: int = 500,
) -> float:
    """Return the factor after these values of a metric, as transformers' GreedyLR (arXiv:2512.14527)."""
    if not 0 < factor < 1:
        raise ValueError(f"factor is {factor}, expected a number between 0 and 1")
    check_count("window_size", window_size)
    sign = 1 if mode == "min" else -1
    start: Any = sign * math.inf, 0, 0, 0, reset_start, []
    (best, better, worse, resting, left, window), rate = start, run.lr
    for value in metrics:
        if smooth:
            window = [*window, value][-window_size:]
            value = sum(window) / len(window)
        if resting > 0:
            resting, better, worse = resting - 1, 0, 0
            continue
        bar = best * (1 - sign * threshold) if threshold_mode == "rel" else best - sign * threshold
        best, better, worse = (value, better + 1, 0) if sign * value < sign * bar else (best, 0, worse + 1)
        if better > patience:
            higher = min(rate / factor, max_lr)
            rate, resting, left, better = higher if higher - rate > eps else rate, warmup, reset_start, 0
        elif worse > patience:
            lower = max(rate * factor, min_lr)
            rate, resting, worse = lower if rate - lower > eps else rate, cooldown, 0
            left -= rate <= min_lr
            if left <= 0:
                (best, better, worse, _, left, window), rate = start, run.lr
    return rate / run.lr if run.lr else 1.0


def _wave(turns: float) -> float:
    """Return a cosine from 1 over 0, at half a turn, to 1."""
    return 0.5 * (1 + math.cos(2 * math.pi * turns))


SCHEDULES: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys(("constant", "constant_with_warmup"), lambda position, run: 1.0),
    "linear": lambda position, run: 1 - run.progress(position),
    "cosine": lambda position, run, *, num_cycles=0.5: max(0.0, _wave(num_cycles * run.progress(position))),
    "cosine_with_restarts": _cosine_with_restarts,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "cosine_warmup_with_min_lr": _cosine_warmup_with_min_lr,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
    "reduce_lr_on_plateau": _reduce_lr_on_plateau,
    "greedy": _greedy,
}
BY_METRICS = ("reduce_lr_on_plateau", "greedy")
ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt", *BY_METRICS)  # they do not depend on the total
_OWN_WARMUP = ("constant", "warmup_stable_decay", "cosine_warmup_with_min_lr", *BY_METRICS)  # the others: a linear one
STEPS_OF_SCHEDULES = ("num_decay_steps", "num_stable_steps", "timescale")
_SHAPES = ("linear", "cosine", "1-sqrt")
_CHOICES = {"warmup_type": _SHAPES, "decay_type": _SHAPES, "mode": ("min", "max"), "threshold_mode": ("rel", "abs")}
_MOST = {"min_lr_rate": 1, "warmup_lr_rate": 1, "min_lr_ratio": 1, "factor": 1, "num_cycles": 1000, "power": 1000}


class Schedule:
    """Set the rate of each group of an optimiser: its initial rate times a factor that depends on the steps made.

    The first step has the factor for 0 steps, which is 0 with a warm-up.

    Args:
        optimizer: its groups' `lr` are set at once and at every `step`.
        factor: maps a position to the factor; or, with `by_metrics`, the list of the metrics so far.
        by_metrics: whether the rates depend on the metrics given to `step`.

    Attributes:
        position: the number of steps made, or another measure of progress (seconds, see `move_to`).
        metrics: the metrics given to `step`; None unless the rates depend on them.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[Any], float], *, by_metrics: bool = False):
        self.optimizer, self.factor = optimizer, factor
        self.metrics: list[float] | None = [] if by_metrics else None
        self.move_to(0)

    def step(self, metrics: float | None = None) -> None:
        """Set the rates of the next step, after the optimiser's step; or, `by_metrics`, after another metric."""
        if self.metrics is not None and metrics is not None:
            self.metrics.append(float(metrics))
            self.move_to(self.position)
        else:
            self.move_to(self.position + 1)

    def move_to(self, position: float) -> None:
        """Set the rates for this position."""
        self.position = position
        factor = self.factor(position if self.metrics is None else self.metrics)
        for group in self.optimizer.groups:
            group.lr = group.initial_lr * factor

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume a run from."""
        return {"position": self.position} | ({} if self.metrics is None else {"metrics": self.metrics})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises TypeError or ValueError for an invalid state."""
        position = check_number("position", state.get("position"))
        if self.metrics is not None:
            metrics = state.get("metrics")
            if not isinstance(metrics, list) or not all(isinstance(value, int | float) for value in metrics):
                raise TypeError(f"metrics is {metrics!r:.80}, expected a list of numbers")
            self.metrics = list(metrics)
        self.move_to(position)


def get_scheduler(
    name: str,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Schedule:
    """Return a schedule by name, after a linear warm-up from 0. Names, options and defaults are transformers'.

    Args:
        name: one of these; options in brackets. "constant", which has no warm-up; "constant_with_warmup". "linear",
            down to 0; "polynomial", down to the rate lr_end (lr_end, power). "cosine", down to 0 (num_cycles);
            "cosine_with_restarts" (num_cycles); "cosine_with_min_lr", down to a rate or a fraction (min_lr or
            min_lr_rate, num_cycles); "cosine_warmup_with_min_lr" likewise, with a warm-up from the fraction
            warmup_lr_rate, by default that of one step. "inverse_sqrt" (timescale). "warmup_stable_decay", full until
            the last num_decay_steps, then down to a fraction (num_decay_steps, num_stable_steps, warmup_type,
            decay_type, min_lr_ratio, num_cycles). A number of steps below 1 is a fraction of all; num_decay_steps is
            0.1 by default, while transformers requires it. "reduce_lr_on_plateau", lower after metrics, given to
            `Schedule.step`, without improvement (mode, factor, patience, threshold, threshold_mode, cooldown, min_lr,
            eps), no warm-up; "greedy", also higher after improvements (these, warmup, max_lr, smooth, window_size,
            reset_start). Its min_lr of 0.001 and max_lr of 1 are transformers', too high for most runs of encoders.
        optimizer: the optimiser whose rates are set. Rates among the options refer to its last group; the other groups
            keep their proportion to it.
        num_warmup_steps: the number of steps of the warm-up.
        num_training_steps: the total number of steps, including the warm-up; not needed for schedules without an end.
        scheduler_specific_kwargs: the options as a mapping.
        options: the options by name.

    Raises:
        TypeError, ValueError: for an unknown name or option, and wrong numbers of steps.
    """
    options = {**(scheduler_specific_kwargs or {}), **options}
    warmup = check_count("num_warmup_steps", num_warmup_steps or 0, 0)
    if num_training_steps is not None:
        check_count("num_training_steps", num_training_steps, 0)
    elif name in SCHEDULES and name not in ENDLESS and options.get("num_stable_steps") is None:
        raise ValueError(f"num_training_steps is missing: {name} ends with them")
    return make_schedule(name, optimizer, warmup, num_training_steps, options)


def make_schedule(
    name: str, optimizer: Optimizer, warmup: float, total: float | None, options: Mapping[str, Any]
) -> Schedule:
    """Return a schedule of a run of `total` steps (int) or seconds (float); see `get_scheduler`."""
    checks.choice("name", name, SCHEDULES)
    known = SCHEDULES[name].__kwdefaults__ or {}
    for option, value in options.items():
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}{'; it has ' + ', '.join(known) if known else ''}")
        if option in _CHOICES:
            checks.choice(option, value, _CHOICES[option])
        elif option == "smooth":
            checks.boolean(option, value)
        elif (value is not None or known[option] is not None) and check_number(option, value) > _MOST.get(
            option, math.inf
        ):
            raise ValueError(f"{option} is {value!r}, expected a number from 0 to {_MOST[option]}")
    # unlike a closure, a partial function can be pickled
    run = _Run(warmup, total, optimizer.groups[-1].initial_lr)
    factor = functools.partial(_factor, name, run, dict(options))
    factor([] if name in BY_METRICS else warmup)  # raises for options that contradict each other
    return Schedule(optimizer, factor, by_metrics=name in BY_METRICS)


def steps_of(value: float, total: float | None) -> float:
    """Return a number of steps or seconds: `value` or, below 1, that fraction of `total`.

    Fractions of steps are rounded up, as transformers does.
    """
    if value >= 1 or value == 0:
        return value
    if total is None:
        raise ValueError(f"num_training_steps is missing, expected it for the fraction {value}")
    return math.ceil(value * total) if isinstance(total, int) else value * total


def _factor(name: str, run: _Run, options: Mapping[str, Any], position: Any) -> float:
    if name not in _OWN_WARMUP and position < run.warmup:
        return position / run.warmup
    return SCHEDULES[name](position, run, **options)
