"""What a run tells of itself: a progress bar, a log of JSON lines, a plot of the losses, TensorBoard."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from bertcore.checkpoint.files import naming, temporary_beside
from bertcore.training.arguments import TrainingArguments
from bertcore.training.callbacks import TrainerCallback
from bertcore.training.state import TrainerControl, TrainerState

LOG_NAME, PLOT_NAME, TENSORBOARD_NAME = "log.jsonl", "loss.png", "runs"


class JsonLog(TrainerCallback):
    """Each line of the log as a JSON object in log.jsonl, null for inf and NaN; a resumed run keeps those up to its
    checkpoint."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Write the lines that there are; ValueError where another run is writing its own."""
        self._path = Path(args.output_dir) / LOG_NAME
        with naming(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        _check_alone(self._file, self._path)
        with naming(self._path):
            if self._file.tell():
                self._file.truncate(0)
            self._write(state.log_history)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Append a line."""
        self._write([event["logs"]])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Close the file, which another run may then write to."""
        self._file.close()
        del self._file  # trainers are copied and pickled, files are not

    def _write(self, lines: Iterable[Mapping[str, float]]) -> None:
        with naming(self._path):
            self._file.writelines(map(_json_line, lines))
            self._file.flush()


def _check_alone(file: IO[str], path: Path) -> None:
    """Lock a log that is open, where the system can; ValueError if another run has it."""
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"{path} is the log of a run that goes on, expected another folder for this one") from None
    except OSError:  # of file systems without locks (some of NFS)
        return


def _json_line(logs: Mapping[str, float]) -> str:
    """With null for inf and NaN, which JSON has not."""
    lost = [name for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)]
    return json.dumps({**logs, **dict.fromkeys(lost)}, allow_nan=False) + "\n"


class Progress(TrainerCallback):
    """A progress bar with the loss, tokens per second and the time that is left."""

    def __init__(self, is_off: bool | None):
        self._is_off, self._bar = is_off, None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Draw it, on standard error."""
        from tqdm import tqdm

        by_time = args.max_seconds is not None
        self._bar = tqdm(
            total=round(args.max_seconds) if by_time else state.max_steps,
            initial=_position(state, by_time),
            unit="s" if by_time else "step",
            disable=self._is_off,
            file=sys.stderr,
            dynamic_ncols=True,
        )
        self._first = state.num_input_tokens_seen, state.seconds

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Move it."""
        tokens, seconds = self._first
        speed = (state.num_input_tokens_seen - tokens) / max(state.seconds - seconds, 1e-9)
        loss = state.unlogged_loss / max(1, state.unlogged_steps)
        self._bar.set_postfix_str(f"loss {loss:.4g}, {speed:,.0f} tokens/s", refresh=False)
        self._bar.update(_position(state, args.max_seconds is not None) - self._bar.n)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Leave it as it is."""
        self._bar.close()
        self._bar = None


def _position(state: TrainerState, by_time: bool) -> int:
    return int(state.seconds) if by_time else state.global_step


class LossPlot(TrainerCallback):
    """loss.png: the losses of training and evaluation over the steps."""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Draw it."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for name, label in (("loss", "training"), ("eval_loss", "evaluation")):
            points = [(logs["step"], logs[name]) for logs in state.log_history if name in logs]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 50 else "")
        axes.set(xlabel="steps", ylabel="loss")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
        file = Path(args.output_dir) / PLOT_NAME
        with temporary_beside(file) as new, naming(file):
            figure.savefig(new, format="png", dpi=120)
            os.replace(new, file)


class TensorBoard(TrainerCallback):
    """The numbers of the log as scalars of TensorBoard, in the folder `runs` of the output."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Open a writer."""
        from tensorboard.summary import Writer

        self._writer = Writer(str(Path(args.output_dir) / TENSORBOARD_NAME))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Write each number."""
        for name, value in event["logs"].items():
            if name != "step":
                self._writer.add_scalar(name, value, event["logs"]["step"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Close it."""
        self._writer.close()


_OPTIONAL: dict[str, tuple[str, Callable[[], TrainerCallback]]] = {
    "plot": ("matplotlib", LossPlot),
    "tensorboard": ("tensorboard", TensorBoard),
}


def reports_of(args: TrainingArguments) -> list[TrainerCallback]:
    """The callbacks that report as the arguments ask.

    Raises:
        ImportError: for a report whose package is not installed; "all" takes those that are.
    """
    made: list[TrainerCallback] = [JsonLog(), Progress(args.disable_tqdm)]
    for name, (package, report) in _OPTIONAL.items():
        is_asked = args.report_to != "none" and (args.report_to == "all" or name in args.reports)
        is_there = is_asked and find_spec(package) is not None
        if is_asked and not is_there and args.report_to != "all":
            raise ImportError(f"report_to has {name!r}, which needs {package}: pip install {package}")
        if is_there:
            made.append(report())
    return made
