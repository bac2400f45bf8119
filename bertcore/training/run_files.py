"""What a checkpoint of a run holds: model, tokenizer, optimiser, schedule, state and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.checkpoint.saving import write_safetensors
from bertcore.training.arguments import TrainingArguments
from bertcore.training.optimizers import Optimizer
from bertcore.training.schedules import Schedule
from bertcore.training.state import TrainerState

OPTIMIZER, SCHEDULE, STATE, ARGUMENTS = (
    "optimizer.safetensors",
    "scheduler.json",
    "trainer_state.json",
    "training_args.json",
)

# Settings that tell which examples a batch has and what is random in it: a position in the data means nothing without.
_OF_THE_DATA = (
    "per_device_train_batch_size",
    "max_tokens_per_batch",
    "gradient_accumulation_steps",
    "seed",
    "data_seed",
    "group_by_length",
    "dataloader_drop_last",
)


def save_run(
    folder: Path,
    model: Any,
    tokenizer: Any,
    optimizer: Optimizer,
    schedule: Schedule,
    state: TrainerState,
    args: TrainingArguments,
) -> None:
    """Write all of it into `folder`."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    arrays = {name: np.require(array, requirements="C") for name, array in optimizer.state_dict().items()}
    write_safetensors(folder / OPTIMIZER, arrays)
    for name, values in ((SCHEDULE, schedule.state_dict()), (ARGUMENTS, args.to_dict())):
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    state.save_to_json(folder / STATE)


def load_run(
    folder: Path,
    model: Any,
    optimizer: Optimizer,
    schedule: Schedule,
    args: TrainingArguments,
    now: TrainerState,
) -> TrainerState:
    """Take all of it from a checkpoint, and return the state.

    Raises:
        ValueError: which file is missing or damaged; which setting, or that the number of examples or of processes
            (of the state `now`), is another one than it was.
    """
    for name in (OPTIMIZER, SCHEDULE, STATE, ARGUMENTS):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} is no checkpoint of a run: it has no {name}")
    before, state = _read_json(folder / ARGUMENTS), TrainerState.load_from_json(folder / STATE)
    known = {name: (before.get(name), getattr(args, name)) for name in _OF_THE_DATA}
    known["the number of examples"] = state.num_examples, now.num_examples
    known["the number of processes"] = state.num_processes, now.num_processes
    for name, (was, is_now) in known.items():
        if was != is_now:
            raise ValueError(
                f"{name} is {is_now!r}, in {folder} it was {was!r}: to go on where that run was, its data has to come "
                "in the same order"
            )
    model.load_weights(folder)
    optimizer.load_state_dict(open_checkpoint(folder / OPTIMIZER))
    schedule.load_state_dict(_read_json(folder / SCHEDULE))
    return state


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
