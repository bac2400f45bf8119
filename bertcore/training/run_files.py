"""What a checkpoint of a run holds: model, tokenizer, optimiser, schedule, state and arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.checkpoint.safetensors_file import write_safetensors
from bertcore.nn.parameter import Parameter
from bertcore.training.arguments import TrainingArguments
from bertcore.training.optimizers import Optimizer
from bertcore.training.schedules import Schedule
from bertcore.training.state import TrainerState

OPTIMIZER, OBJECTIVE, SCHEDULE, STATE, ARGUMENTS = (
    "optimizer.safetensors",
    "objective.safetensors",  # what is trained beside the model, where there is any
    "scheduler.json",
    "trainer_state.json",
    "training_args.json",
)

# Settings without which a position in the data, or what the optimiser keeps, means nothing, and those that would make
# the steps to come others than they would have been.
_KEPT = (
    "per_device_train_batch_size",
    "max_tokens_per_batch",
    "gradient_accumulation_steps",
    "seed",
    "data_seed",
    "group_by_length",
    "dataloader_drop_last",
    "remove_unused_columns",
    "label_smoothing_factor",
    "optim",
    "learning_rate",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "max_grad_norm",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "bf16",
    "fp16",
)


def save_run(
    folder: Path,
    model: Any,
    tokenizer: Any,
    optimizer: Optimizer,
    schedule: Schedule,
    state: TrainerState,
    args: TrainingArguments,
    *,
    beside: Sequence[Parameter] = (),
) -> None:
    """Write all of it into `folder`; `beside` are the parameters that are trained beside the model."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    _write_arrays(folder / OPTIMIZER, optimizer.state_dict())
    if beside:
        _write_arrays(folder / OBJECTIVE, {name: array for each in beside for name, array in each.tensors()})
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
    *,
    beside: Sequence[Parameter] = (),
) -> TrainerState:
    """Take all of it from a checkpoint, and return the state.

    Raises:
        ValueError: which file is missing or damaged; which setting, or which fact in the state `now` (the data and its
            masking, the number of processes, the weights beside adapters, the teacher), is another one than it was.
    """
    for name in (OPTIMIZER, *([OBJECTIVE] if beside else []), SCHEDULE, STATE, ARGUMENTS):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} is no checkpoint of a run: it has no {name}")
    before, state = _read_json(folder / ARGUMENTS), TrainerState.load_from_json(folder / STATE)
    known = {name: (before.get(name), getattr(args, name)) for name in _KEPT}
    facts = {"the number of examples": "num_examples", "the number of processes": "num_processes"}
    facts |= {"the dataset's fingerprint": "data", "masking": "masking"}
    facts |= {"the fingerprint of the weights beside the adapters": "frozen", "the teacher's fingerprint": "teacher"}
    known |= {name: (getattr(state, fact), getattr(now, fact)) for name, fact in facts.items()}
    for name, (was, is_now) in known.items():
        if was != is_now:
            raise ValueError(
                f"{name} is {is_now!r}, in {folder} it was {was!r}: a run goes on with the data and the settings that "
                "it began with"
            )
    kept = _read_beside(folder / OBJECTIVE, beside) if beside else {}
    model.load_weights(folder)
    for parameter in beside:
        parameter.fill({name: kept[name] for name in parameter.names}, parameter.precision)
    optimizer.load_state_dict(open_checkpoint(folder / OPTIMIZER))
    try:
        schedule.load_state_dict(_read_json(folder / SCHEDULE))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / SCHEDULE}: {error}") from error
    return state


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    write_safetensors(file, {name: np.require(array, requirements="C") for name, array in arrays.items()})


def _read_beside(file: Path, parameters: Sequence[Parameter]) -> dict[str, np.ndarray]:
    """Copies of the arrays of these parameters; CheckpointError if the file has others."""
    opened = open_checkpoint(file)
    expected = {name: shape for parameter in parameters for name, shape in parameter.expected.items()}
    found = {name: opened[name].shape for name in opened}
    if found != expected:
        raise CheckpointError(f"{file} is of another objective: it has {found}, expected {expected}")
    return {name: np.array(opened[name]) for name in opened}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds {values!r:.80}, expected an object")
    return values
