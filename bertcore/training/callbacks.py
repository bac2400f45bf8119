"""Callbacks of a run, and the reports built on them."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertcore.arguments import Described, check_count, check_number
from bertcore.checkpoint.files import naming, temporary_beside
from bertcore.system import lock, replace
from bertcore.training.arguments import LOCAL_REPORTS, TrainerControl, TrainerState, TrainingArguments


class TrainerCallback(Described):
    """Base class of callbacks; override the methods that you need.

    Each method receives the arguments, the state and the control, whose switches it may set, and by name `model`,
    `optimizer`, `lr_scheduler`, `processing_class` and the subject of the event: `logs` (on_log), `metrics`
    (on_evaluate), `folder` (on_save). Outside `train`, `Trainer.evaluate` and `log` call on_log and on_evaluate. A
    callback with `state_dict` and `load_state_dict` (JSON values) keeps its state when a run is resumed.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run before the first step."""

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run before the first batch of an epoch."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after each step of the optimiser."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after a log entry, `logs`."""

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after an evaluation, which gave `metrics`."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after a checkpoint, `folder`, has been written."""

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after the last step of an epoch, also if the run ends within it, but not after a signal."""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Run after the last step, also if the run was interrupted."""


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


class EarlyStoppingCallback(TrainerCallback):
    """End a run whose evaluations no longer improve, by `metric_for_best_model` (eval_loss by default).

    Args:
        early_stopping_patience: the number of evaluations without improvement that ends the run.
        early_stopping_threshold: the improvement over the best evaluation before that counts, if it is larger.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float = 0.0):
        self.patience = check_count("early_stopping_patience", early_stopping_patience)
        self.threshold = check_number("early_stopping_threshold", early_stopping_threshold)
        self.best: float | None = None
        self.failures, self._is_running = 0, False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        self._is_running = True
        if state.global_step == 0:
            self.best, self.failures = None, 0

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        self._is_running = False

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Compare with the best so far. Raises ValueError without the metric; outside a run nothing counts."""
        if not self._is_running:
            return
        value = args.deciding_value(event["metrics"])
        gain = args.gain(value, self.best)
        self.failures = 0 if gain > self.threshold else self.failures + 1
        self.best = value if gain > 0 else self.best
        control.should_training_stop |= self.failures >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far and the evaluations since."""
        return {"best": self.best, "failures": self.failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best, self.failures = state["best"], state["failures"]


class Callbacks:
    """All callbacks of a run, called in turn, with `details` beside those of each event."""

    def __init__(self, callbacks: Sequence[TrainerCallback | type[TrainerCallback]], **details: Any):
        self.all: list[TrainerCallback] = []
        self.details = details
        for callback in callbacks:
            self.add(callback, "callbacks")

    def add(self, callback: TrainerCallback | type[TrainerCallback], name: str = "callback") -> None:
        """Add a callback after the others. Raises TypeError for another object, or a method without an event."""
        made = callback() if isinstance(callback, type) else callback
        if not isinstance(made, TrainerCallback):
            raise TypeError(f"{name} is {type(made).__name__}, expected TrainerCallbacks")
        for event in dir(made):
            if event.startswith("on_") and event not in EVENTS:
                raise TypeError(f"{type(made).__name__} has {event}, which is never called; {', '.join(EVENTS)} are")
        self.all.append(made)

    def pop(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove this callback, or the first of this class, and return it; None if there is none."""
        for number, each in enumerate(self.all):
            if each is callback or type(each) is callback:
                return self.all.pop(number)
        return None

    def call(self, event: str, *now: Any, **details: Any) -> None:
        """Call the method `event` of each callback; if on_train_begin raises, end the run for the earlier ones."""
        details = self.details | details
        with ExitStack() as ended_on_failure:
            for callback in self.all:
                getattr(callback, event)(*now, **details)
                if event == "on_train_begin":
                    ended_on_failure.callback(callback.on_train_end, *now, **details)
            ended_on_failure.pop_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of callbacks that have one, by class; the second of a class is "NAME 2"."""
        return {name: callback.state_dict() for name, callback in self._with_state()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; new callbacks start fresh."""
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


LOG_NAME, PLOT_NAME, TENSORBOARD_NAME = "log.jsonl", "loss.png", "runs"


class JsonLog(TrainerCallback):
    """Write each line of a run's log to log.jsonl as a JSON object, with null for inf and NaN.

    A resumed run keeps the lines up to its checkpoint.
    """

    _file: IO[str] | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Write the lines so far. Raises ValueError if another run is writing to the file."""
        self._path = Path(args.output_dir) / LOG_NAME
        with naming(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        try:
            lock(self._file.fileno(), wait=False)
        except BlockingIOError:
            self._file.close()
            expected = "expected another folder for this one"
            raise ValueError(f"{self._path} is the log of a run in progress, {expected}") from None
        except OSError:  # file systems without locks (some NFS)
            pass
        with naming(self._path):
            if self._file.tell():
                self._file.truncate(0)
            self._write(state.log_history)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        if self._file is not None:
            self._write([event["logs"]])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Close the file, so that another run may write to it."""
        self._file.close()
        self._file = None  # trainers are copied and pickled, files are not

    def _write(self, lines: Iterable[Mapping[str, float]]) -> None:
        with naming(self._path):
            for logs in lines:
                lost = [name for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)]
                self._file.write(json.dumps({**logs, **dict.fromkeys(lost)}, allow_nan=False) + "\n")
            self._file.flush()


class Progress(TrainerCallback):
    """A progress bar on standard error with the loss, tokens per second and the remaining time."""

    def __init__(self, is_off: bool | None):
        self._is_off, self._bar = is_off, None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        from tqdm import tqdm

        by_time = args.max_seconds is not None
        length = (
            {"total": round(args.max_seconds), "unit": "s"} if by_time else {"total": state.max_steps, "unit": "step"}
        )
        options = {"disable": self._is_off, "file": sys.stderr, "dynamic_ncols": True}
        self._bar = tqdm(initial=_position(state, by_time), **length, **options)
        self._first = state.num_input_tokens_seen, state.seconds

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        tokens, seconds = self._first
        speed = (state.num_input_tokens_seen - tokens) / max(state.seconds - seconds, 1e-9)
        loss = state.unlogged_loss / max(1, state.unlogged_steps)
        self._bar.set_postfix_str(f"loss {loss:.4g}, {speed:,.0f} tokens/s", refresh=False)
        self._bar.update(_position(state, args.max_seconds is not None) - self._bar.n)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        self._bar.close()
        self._bar = None


def _position(state: TrainerState, by_time: bool) -> int:
    return int(state.seconds) if by_time else state.global_step


class LossPlot(TrainerCallback):
    """Draw loss.png: the curves of `training_curves`, unless no finite loss was logged."""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        from bertcore.drawing import save_figure
        from bertcore.training.curves import training_curves

        losses = [logs.get(name, math.nan) for logs in state.log_history for name in ("loss", "eval_loss")]
        if not any(map(math.isfinite, losses)):
            return
        file = Path(args.output_dir) / PLOT_NAME
        with temporary_beside(file) as new, naming(file):
            save_figure(training_curves(state.log_history), new, ".png")
            replace(new, file)


class Writer(NamedTuple):
    """Functions of an open report: write a line of the log, and end the report until it is opened again."""

    write: Callable[..., object]
    close: Callable[[], object]


class Report(TrainerCallback):
    """Base class of reports by another package: open during a run, and for each line of the log outside of one."""

    _writer: Writer | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        self._writer = self.opened(args)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        logs = dict(event["logs"])
        writer = self._writer or self.opened(args)
        try:
            writer.write(logs, step=logs.pop("step"))
        finally:
            if self._writer is None:
                writer.close()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        self._writer.close()
        self._writer = None

    def opened(self, args: TrainingArguments) -> Writer:
        """Open the report, or continue the earlier one of this object."""
        raise NotImplementedError


class TensorBoard(Report):
    """Write the numbers of the log as TensorBoard scalars to the folder `runs` of the output."""

    def opened(self, args: TrainingArguments) -> Writer:
        from tensorboard import summary

        writer = summary.Writer(str(Path(args.output_dir) / TENSORBOARD_NAME / (args.run_name or "")))

        def write(logs: dict[str, float], step: int) -> None:
            for name, value in logs.items():
                writer.add_scalar(name, value, step)

        return Writer(write, writer.close)


class WeightsAndBiases(Report):
    """Log a run with wandb, which reads WANDB_PROJECT and the like itself; the config has the arguments."""

    _id: str | None = None

    def opened(self, args: TrainingArguments) -> Writer:
        import wandb

        how = {"name": args.run_name, "config": _settings(args), "id": self._id, "resume": "allow"}
        run = wandb.init(dir=str(args.output_dir), **how)
        self._id = run.id
        return Writer(run.log, run.finish)


class MLflow(Report):
    """Log a run with mlflow, which reads MLFLOW_TRACKING_URI and the like itself; the parameters are the arguments."""

    _id: str | None = None

    def opened(self, args: TrainingArguments) -> Writer:
        import mlflow

        run = mlflow.start_run(run_id=self._id, run_name=args.run_name)
        if self._id is None:
            mlflow.log_params(_settings(args))
        self._id = run.info.run_id
        return Writer(mlflow.log_metrics, mlflow.end_run)


def _settings(args: TrainingArguments) -> dict[str, Any]:
    values = args.to_dict().items()
    return {name: each if isinstance(each, int | float | str | None) else str(each) for name, each in values}


_OPTIONAL: dict[str, tuple[str, Callable[[], TrainerCallback]]] = {
    "plot": ("matplotlib", LossPlot),
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", WeightsAndBiases),
    "mlflow": ("mlflow", MLflow),
}


def reports_of(args: TrainingArguments) -> list[TrainerCallback]:
    """Return the callbacks that the arguments request.

    Raises ImportError for a report whose package is not installed; "all" takes the installed ones.
    """
    made: list[TrainerCallback] = [JsonLog(), Progress(args.disable_tqdm)]
    for name, (package, report) in _OPTIONAL.items():
        is_asked = name in (LOCAL_REPORTS if args.report_to == "all" else args.reports)
        is_there = is_asked and find_spec(package) is not None
        if is_asked and not is_there and args.report_to != "all":
            raise ImportError(f"report_to has {name!r}, which needs {package}: pip install {package}")
        if is_there:
            made.append(report())
    return made
