"""The losses of steps that the device may still be at: reading them waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels

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
