"""Safeguards of a run: the loss scale of float16, losses not read yet, diverged runs, and interrupts."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.checkpoint.files import naming
from bertcore.training.checkpoints import write_folder

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


class PendingSteps:
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


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is inf or NaN; `folder` has the batches and the model of the step."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


def non_finite(grads: Mapping[str, Any]) -> list[str]:
    """The names of the gradients that hold inf or NaN."""
    return [name for name, array in grads.items() if not bool(kernels.array_module(array).isfinite(array).all())]


def keep_for_post_mortem(
    folder: Path, model: Any, batches: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> None:
    """Write the model as it was before the step, its batches (batch-0.npz, ...) and what is known (failure.json)."""

    def fill(new: Path) -> None:
        model.save_pretrained(new)
        for number, batch in enumerate(batches):
            np.savez(new / f"batch-{number}.npz", **{name: np.asarray(value) for name, value in batch.items()})
        (new / "failure.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    with naming(folder):
        write_folder(folder, fill)


ENDING = signal.SIGINT, signal.SIGTERM


@contextmanager
def held_back() -> Iterator[list[int]]:
    """A block in which the first Ctrl-C or SIGTERM is only noted, in the list that it yields.

    The signal acts where the block ends, as it would have without it; a second one acts at once. Elsewhere than in the
    main thread, where no handlers can be set, signals act as ever.
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
