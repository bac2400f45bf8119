"""Safeguards of a run: the loss scale of float16, checks of losses, diverged runs, and interrupts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.checkpoint.files import naming, write_json
from bertcore.kernels.arrays import Array
from bertcore.training.checkpoints import write_folder

INITIAL, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000
LEAST = 1.0  # below it overflow is not the cause of inf and NaN


class LossScale:
    """The factor on a run's losses that keeps float16 gradients in range.

    Source: Micikevicius et al. 2018, arXiv:1710.03740, with the constants of torch.amp.GradScaler. The scale is halved
    at each step whose gradients overflow, which is skipped, and doubled after 2,000 steps without. It lives in the
    memory of the backend that was in force when it was made: updating it never waits for the device.

    Attributes:
        value: the scale, a 0-d array in float32.
    """

    def __init__(self) -> None:
        self.load_state_dict({"scale": INITIAL, "good_steps": 0, "skipped_steps": 0})

    def update(self, is_finite: Array | float) -> None:
        """Follow a step; `is_finite`, a 0-d array, says whether its gradients are finite."""
        xp, value = kernels.array_module(self.value), self.value
        good = xp.where(is_finite, self._good_steps + 1, 0)
        with np.errstate(over="ignore"):
            grows = (good >= INTERVAL) & xp.isfinite(value * np.float32(GROWTH))
        factor = xp.where(is_finite, xp.where(grows, GROWTH, 1.0), BACKOFF)
        self.value = (value * factor).astype(np.float32)
        self._good_steps = xp.where(good >= INTERVAL, 0, good)
        self._skipped_steps = self._skipped_steps + ~is_finite

    @property
    def is_too_small(self) -> Array:
        """A 0-d array: whether no smaller scale would help."""
        return self.value < LEAST

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, the steps since it changed and the skipped steps as numbers; waits for the device."""
        numbers = {"scale": float(self.value), "good_steps": int(self._good_steps)}
        return {**numbers, "skipped_steps": int(self._skipped_steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = kernels.to_backend(np.asarray(state["scale"], np.float32))
        counts = (kernels.to_backend(np.asarray(state[name])) for name in ("good_steps", "skipped_steps"))
        self._good_steps, self._skipped_steps = counts


MOST = 50  # steps that the host may run ahead of the device; their batches are kept


class StepResult(NamedTuple):
    """A step: its batches, loss, gradient norm, and whether the run can continue after it; 0-d arrays or numbers."""

    step: int
    part: list[tuple[int, Mapping[str, Any]]]
    loss: Array | float
    norm: Array | float
    is_finite: Array | float


class PendingSteps(list[StepResult]):
    """Steps whose losses have not been read from the device; those in host memory are due at once."""

    @property
    def is_due(self) -> bool:
        """True if the steps are to be read now."""
        return bool(self) and (len(self) >= MOST or kernels.array_module(self[-1].loss) is np)

    def read(self) -> Iterator[StepResult]:
        """Yield the steps with numbers and forget them. One copy brings all numbers from a device."""
        if not self:
            return
        steps = self[:]
        self.clear()
        xp = kernels.array_module(steps[0].loss)
        numbers = xp.stack([xp.stack([made.loss, made.norm, xp.asarray(made.is_finite, "float64")]) for made in steps])
        for made, (loss, norm, is_finite) in zip(steps, numbers.tolist(), strict=True):
            yield made._replace(loss=loss, norm=norm, is_finite=bool(is_finite))


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is inf or NaN; `folder` has the batches and the model of the step."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


def save_failed_step(folder: Path, model: Any, batches: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write the model before the step, its batches (batch-0.npz, ...) and the facts (failure.json)."""

    def fill(new: Path) -> None:
        model.save_pretrained(new)
        for number, batch in enumerate(batches):
            np.savez(new / f"batch-{number}.npz", **{name: np.asarray(value) for name, value in batch.items()})
        write_json(new / "failure.json", facts)

    with naming(folder):
        write_folder(folder, fill)


ENDING = signal.SIGINT, signal.SIGTERM


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Hold back the first Ctrl-C or SIGTERM within the block; it is noted in the list that the block gets.

    The signal acts at the end of the block; a second one acts at once. Outside the main thread, which alone can set
    handlers, signals act as usual.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.getsignal(number) for number in ENDING}

    def note(number: int, frame: object) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: it was set by other code than Python's
                signal.signal(number, handler)

    for number, handler in before.items():
        if handler not in (None, signal.SIG_IGN):
            signal.signal(number, note)
    try:
        yield noted
    finally:
        restore()
    if noted:
        signal.raise_signal(noted[0])
