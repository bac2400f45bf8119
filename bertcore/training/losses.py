"""What a loss is multiplied by, so that its gradients stay within float16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels

INITIAL, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000
LEAST = 1.0  # below it no gradient is too large: what is not finite is so for another reason


class LossScale:
    """The scale of the losses of a run, which follows what gradients do (Micikevicius et al. 2018, arXiv:1710.03740,
    with the numbers of torch.amp.GradScaler).

    It is halved at each step whose gradients have overflown, which is skipped, and doubled after 2,000 steps in which
    none have. It stays in the memory of the backend that was in force when it was made: nothing waits for it.

    Attributes:
        value: the scale, an array without axes in float32.
    """

    def __init__(self) -> None:
        self.load_state_dict({"scale": INITIAL, "good_steps": 0, "skipped_steps": 0})

    def update(self, is_finite: Any) -> None:
        """Follow a step; `is_finite`, an array without axes, says whether its gradients are finite."""
        xp, value = kernels.array_module(self.value), self.value
        good = xp.where(is_finite, self._good_steps + 1, 0)
        with np.errstate(over="ignore"):
            grows = (good >= INTERVAL) & xp.isfinite(value * np.float32(GROWTH))
        factor = xp.where(is_finite, xp.where(grows, GROWTH, 1.0), BACKOFF)
        self.value = (value * factor).astype(np.float32)
        self._good_steps = xp.where(good >= INTERVAL, 0, good)
        self._skipped_steps = self._skipped_steps + ~is_finite

    @property
    def is_too_small(self) -> Any:
        """Whether no smaller scale would help, an array without axes."""
        return self.value < LEAST

    def state_dict(self) -> dict[str, Any]:
        """The scale, the steps since it changed and those that were skipped, as numbers; it waits for the device."""
        numbers = {"scale": float(self.value), "good_steps": int(self._good_steps)}
        return {**numbers, "skipped_steps": int(self._skipped_steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self.value = kernels.to_backend(np.asarray(state["scale"], np.float32))
        counts = (kernels.to_backend(np.asarray(state[name])) for name in ("good_steps", "skipped_steps"))
        self._good_steps, self._skipped_steps = counts


MOST = 50  # steps that are not read: their batches are kept, and the host runs ahead of the device by no more


class StepMade(NamedTuple):
    """A step, its batches, the loss, the norm of its gradients, and whether the run can go on after it: arrays without
    axes, or numbers."""

    step: int
    part: Any
    loss: Any
    norm: Any
    is_finite: Any


class Unread:
    """The steps whose losses were not read yet. Those in host memory are to be read at once."""

    def __init__(self) -> None:
        self._steps: list[StepMade] = []

    def add(self, made: StepMade) -> None:
        """Keep one more step."""
        self._steps.append(made)

    @property
    def is_due(self) -> bool:
        """Whether they are to be read now."""
        return bool(self._steps) and (len(self._steps) >= MOST or kernels.array_module(self._steps[-1].loss) is np)

    def read(self) -> Iterator[StepMade]:
        """The steps with numbers, one after another; then there are none. One copy brings them from a device."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        xp = kernels.array_module(steps[0].loss)
        numbers = xp.stack([xp.stack([made.loss, made.norm, xp.asarray(made.is_finite, "float64")]) for made in steps])
        for made, (loss, norm, is_finite) in zip(steps, numbers.tolist(), strict=True):
            yield made._replace(loss=loss, norm=norm, is_finite=bool(is_finite))
