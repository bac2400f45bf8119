"""The state of a run, which its checkpoints store, and the switches of its next actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bertcore.checkpoint.files import read_json_object, write_json

SETTINGS = "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size"
_KINDS = {
    "bool": bool,
    "int": int,
    "float": int | float,
    "str": str,
    "dict[str, Any]": dict,
    "list[dict[str, Any]]": list,
}
_PEERS = {"epoch", "global_step", "num_input_tokens_seen", "best_metric", "best_global_step", "best_model_checkpoint"}
_PEERS |= {*SETTINGS, "log_history"}  # in the JSON as in transformers' TrainerState; the others are nested
MOST_BATCHES = 2**48  # beyond any run


@dataclass
class TrainerState:
    """Progress of a run; a checkpoint stores it as JSON, which transformers' TrainerState can load.

    Attributes:
        global_step: the number of steps made.
        max_steps, num_train_epochs: the total number of steps, and of the epochs they begin; None if not known.
        logging_steps, eval_steps, save_steps: the steps between two log entries, evaluations, checkpoints.
        train_batch_size: `per_device_train_batch_size`.
        num_examples: the number of examples of the dataset; None for a stream.
        num_processes: the number of processes that train together.
        data: a fingerprint of the dataset; None without a length or if it changes between reads.
        masking: the settings of masking; None without masking.
        frozen: a fingerprint of the frozen weights that a checkpoint of adapters lacks; None without adapters.
        teacher: a fingerprint of the weights of the objective's teacher; None without a teacher.
        epoch: the number of epochs made, with the fraction of the current one if its number of batches is known.
        epochs_done, batches_of_epoch: the position in the data: whole epochs, and batches of the next one.
        is_epoch_stopped: whether a callback has ended the current epoch.
        batches_done: the number of all batches so far; they number the random choices.
        seconds: the training time, over all parts of a resumed run.
        num_input_tokens_seen: the number of tokens without padding.
        total_loss: the sum of the losses of all steps.
        unlogged_loss, unlogged_steps: the sum and number of the losses since the last log entry.
        grad_norm: the norm of the last step's gradients; None before the first.
        best_metric, best_global_step, best_model_checkpoint: of the best evaluation.
        log_history: the log entries.
        loss_scale: the state of `LossScale` in float16; otherwise None.
        callbacks: the states of callbacks with a `state_dict`, by class.
        is_world_process_zero, is_local_process_zero: whether this is the first process; not in the JSON.
    """

    is_world_process_zero = True
    is_local_process_zero = True
    global_step: int = 0
    max_steps: int | None = None
    num_train_epochs: int | None = None
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int = 8
    num_examples: int | None = None
    num_processes: int = 1
    data: str | None = None
    masking: dict[str, Any] | None = None
    frozen: str | None = None
    teacher: str | None = None
    epoch: float = 0.0
    epochs_done: int = 0
    batches_of_epoch: int = 0
    is_epoch_stopped: bool = False
    batches_done: int = 0
    seconds: float = 0.0
    num_input_tokens_seen: int = 0
    total_loss: float = 0.0
    unlogged_loss: float = 0.0
    unlogged_steps: int = 0
    grad_norm: float | None = None
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    log_history: list[dict[str, Any]] = field(default_factory=list)
    loss_scale: dict[str, Any] | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)

    def save_to_json(self, file: str | Path) -> None:
        """Write the state to a file."""
        values = asdict(self)
        own = {name: values.pop(name) for name in sorted(values.keys() - _PEERS)}
        write_json(Path(file), values | {"stateful_callbacks": {"bertcore": own}})

    @classmethod
    def load_from_json(cls, file: str | Path) -> TrainerState:
        """Read what `save_to_json` wrote. Raises ValueError, naming the file, for anything else."""
        values, names = read_json_object(Path(file)), {field.name for field in fields(cls)}
        nested = values.pop("stateful_callbacks", None)
        own = nested.get("bertcore") if isinstance(nested, dict) else None
        if not isinstance(own, dict) or values.keys() != _PEERS or values.keys() | own.keys() != names:
            raise ValueError(f"{file} is not the state of a run: expected an object with {', '.join(sorted(names))}")
        values |= own
        for each in fields(cls):
            if not _is_of(values[each.name], each.type):
                raise ValueError(f"{file}: {each.name} is {values[each.name]!r:.80}, expected {each.type}")
        for index, line in enumerate(values["log_history"]):
            if not isinstance(line, dict) or not _is_of(line.get("step"), "int"):
                raise ValueError(f"{file}: log_history[{index}] is {line!r:.80}, expected an object with a step")
        limits = {"batches_done": MOST_BATCHES, "global_step": values["batches_done"]}  # a step takes a batch
        for name, limit in limits.items():
            if not 0 <= values[name] <= limit:
                raise ValueError(f"{file}: {name} is {values[name]}, expected a number from 0 to {limit}")
        return cls(**values)


def _is_of(value: Any, kind: str) -> bool:
    """Return whether a JSON value is of the kind that an annotation names."""
    name = kind.removesuffix(" | None")
    if value is None:
        return name != kind
    return isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")


@dataclass(slots=True)
class TrainerControl:
    """Switches for the next actions of a run; callbacks may turn them on and off."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def join(self, others: Iterable[TrainerControl]) -> None:
        """Set every switch that any of `others` sets."""
        for other in others:
            for each in fields(self):
                setattr(self, each.name, getattr(self, each.name) or getattr(other, each.name))
