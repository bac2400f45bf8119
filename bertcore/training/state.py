"""How far a run is, and what callbacks ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

_KINDS = {"int": int, "float": int | float, "str": str, "dict[str, Any]": dict, "list[dict[str, Any]]": list}


@dataclass
class TrainerState:
    """How far a run is; a checkpoint holds it, as JSON.

    Attributes:
        global_step: the steps made.
        max_steps: all steps of the run; None where only seconds end it.
        num_examples: of the dataset; None for a stream.
        num_processes: that make the steps together.
        data: a fingerprint of the dataset; None where it has no length, or does not give the same twice.
        masking: how words are hidden; None where none are.
        frozen: a fingerprint of the weights beside adapters, which a checkpoint does not hold; None without adapters.
        teacher: a fingerprint of the weights of the objective's teacher; None without one.
        epoch: the epochs gone through, with the share of the present one where the number of its batches is known.
        epochs_done, batches_of_epoch: the position in the data: whole epochs, and batches taken from the next one.
        batches_done: all batches taken, which randomness is numbered by.
        seconds: of training, over all parts of a run that was resumed.
        num_input_tokens_seen: tokens without padding.
        total_loss: the sum of the losses of all steps.
        unlogged_loss, unlogged_steps: the sum of the losses since the last line of the log, and their number.
        best_metric, best_global_step, best_model_checkpoint: of the best evaluation.
        log_history: the lines of the log.
        loss_scale: that of a run in float16 (`LossScale`); None of others.
        callbacks: what callbacks that have a `state_dict` keep, by the names of their classes.
    """

    global_step: int = 0
    max_steps: int | None = None
    num_examples: int | None = None
    num_processes: int = 1
    data: str | None = None
    masking: dict[str, Any] | None = None
    frozen: str | None = None
    teacher: str | None = None
    epoch: float = 0.0
    epochs_done: int = 0
    batches_of_epoch: int = 0
    batches_done: int = 0
    seconds: float = 0.0
    num_input_tokens_seen: int = 0
    total_loss: float = 0.0
    unlogged_loss: float = 0.0
    unlogged_steps: int = 0
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    log_history: list[dict[str, Any]] = field(default_factory=list)
    loss_scale: dict[str, Any] | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)

    def save_to_json(self, file: str | Path) -> None:
        """Write it to a file."""
        Path(file).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load_from_json(cls, file: str | Path) -> TrainerState:
        """What `save_to_json` wrote.

        Raises ValueError, naming the file, for anything else.
        """
        try:
            values = json.loads(Path(file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is no JSON: {error}") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError(f"{file} is not the state of a run: expected an object with {', '.join(sorted(names))}")
        for each in fields(cls):
            if not _is_of(values[each.name], each.type):
                raise ValueError(f"{file}: {each.name} is {values[each.name]!r:.80}, expected {each.type}")
        return cls(**values)


def _is_of(value: Any, kind: str) -> bool:
    """Whether JSON's `value` is of the kind that an annotation names."""
    name = kind.removesuffix(" | None")
    if value is None:
        return name != kind
    return isinstance(value, _KINDS[name]) and not isinstance(value, bool)


@dataclass
class TrainerControl:
    """What the run does next; callbacks may set it."""

    should_training_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def join(self, others: Iterable[TrainerControl]) -> None:
        """Ask for what any of `others` asks for."""
        for other in others:
            for name, value in vars(other).items():
                setattr(self, name, getattr(self, name) or value)
