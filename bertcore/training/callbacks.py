"""Callbacks: code of the caller's at the turning points of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from bertcore.arguments import check_count
from bertcore.training.arguments import TrainingArguments
from bertcore.training.state import TrainerControl, TrainerState


class TrainerCallback:
    """What a `Trainer` calls; derive from it and write the methods that you need.

    Each gets the arguments, the state and the control, whose switches it may set, and by name `model`, `optimizer`,
    `lr_scheduler`, and what the event is about: `logs` (on_log), `metrics` (on_evaluate), `folder` (on_save). One with
    `state_dict` and `load_state_dict` (of what JSON can hold) goes on where it was when a run is resumed.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Before the first step."""

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Before the first batch of an epoch."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After each step of the optimiser."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After a line of the log, `logs`."""

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After an evaluation, which gave `metrics`."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After a checkpoint, `folder`, has been written."""

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After the last step of an epoch."""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """After the last step, also where a run is interrupted."""


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


class EarlyStoppingCallback(TrainerCallback):
    """Ends a run whose evaluations have stopped to improve; needs `metric_for_best_model`, or takes eval_loss.

    Args:
        early_stopping_patience: how many evaluations in a row may bring no improvement.
        early_stopping_threshold: by how much a better one has to be better.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float = 0.0):
        check_count("early_stopping_patience", early_stopping_patience)
        if not early_stopping_threshold >= 0:
            raise ValueError(f"early_stopping_threshold is {early_stopping_threshold!r}, expected at least 0")
        self.patience, self.threshold = early_stopping_patience, early_stopping_threshold
        self.best: float | None = None
        self.failures = 0

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Compare with the best."""
        value = args.deciding_value(event["metrics"])
        if args.gain(value, self.best) > self.threshold:
            self.best, self.failures = value, 0
        else:
            self.failures += 1
        control.should_training_stop |= self.failures >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best so far, and how often it was not reached."""
        return {"best": self.best, "failures": self.failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self.best, self.failures = state["best"], state["failures"]


class Callbacks:
    """All callbacks of a run, called in turn."""

    def __init__(self, callbacks: Sequence[TrainerCallback | type[TrainerCallback]]):
        self.all = [callback() if isinstance(callback, type) else callback for callback in callbacks]
        for callback in self.all:
            if not isinstance(callback, TrainerCallback):
                raise TypeError(f"callbacks is {type(callback).__name__}, expected TrainerCallbacks")
            for name in dir(callback):
                if name.startswith("on_") and name not in EVENTS:
                    known = ", ".join(EVENTS)
                    raise TypeError(f"{type(callback).__name__} has {name}, which is never called; {known} are")

    def call(self, event: str, *now: Any, **details: Any) -> None:
        """Call the method `event` of each; a run that one does not let begin ends for those before it."""
        with ExitStack() as ended_on_failure:
            for callback in self.all:
                getattr(callback, event)(*now, **details)
                if event == "on_train_begin":
                    ended_on_failure.callback(callback.on_train_end, *now, **details)
            ended_on_failure.pop_all()

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one, by class; the second of a class under "NAME 2"."""
        return {name: callback.state_dict() for name, callback in self._with_state()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Take what `state_dict` gave; callbacks that were not there then begin anew."""
        for name, callback in self._with_state():
            if name in states:
                callback.load_state_dict(states[name])

    def _with_state(self) -> Iterator[tuple[str, TrainerCallback]]:
        counts: Counter[str] = Counter()
        for callback in self.all:
            if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict"):
                kind = type(callback).__name__
                counts[kind] += 1
                yield kind if counts[kind] == 1 else f"{kind} {counts[kind]}", callback
