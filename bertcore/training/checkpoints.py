"""Checkpoints of a run: folders that appear whole or not at all, and their contents.

A folder is written under a temporary name, synced to disk and renamed. If a run that returned to an earlier step
replaces a checkpoint, the old one is set aside first. A process killed at any moment leaves the existing checkpoints
whole; one may be set aside, and `recover_checkpoints` puts it back. After an error (a full disk) all are in place and
the partial one is removed. digests.json has the SHA-256 of every file, which shows whether a checkpoint is damaged.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import warn_caller
from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.checkpoint.files import digest_of, read_json_object, remove_abandoned, sync, temporary_beside, write_json
from bertcore.checkpoint.safetensors_file import write_safetensors
from bertcore.nn.parameter import Parameter
from bertcore.system import replace
from bertcore.training.arguments import TrainerState, TrainingArguments
from bertcore.training.optimizers import Optimizer
from bertcore.training.schedules import Schedule

_NAME = re.compile(r"checkpoint-\d+")
_LEFT = re.compile(r"\.(checkpoint-\d+)\.[0-9a-f]+\.tmp")
_ASIDE = re.compile(r"\.(checkpoint-\d+)\.old")


class NotSaved(OSError):
    """A checkpoint could not be written; the message names the last whole one."""


def checkpoint_folder(output_dir: str | os.PathLike[str], step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return Path(output_dir) / f"checkpoint-{step}"


def checkpoints_in(output_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints of a run, the latest last."""
    folder = Path(output_dir)
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def check_whole(folder: Path) -> None:
    """Raise ValueError, naming the file, unless all files of a checkpoint are as they were saved."""
    if not (folder / DIGESTS).is_file():
        raise CheckpointError(f"{folder} is not a checkpoint of a run: it lacks {DIGESTS}")
    digests = read_json_object(folder / DIGESTS)
    models = [file.name for kind in _OF_MODELS for file in folder.glob(kind)]  # callbacks may add folders later
    if missing := sorted({OPTIMIZER, SCHEDULE, STATE, ARGUMENTS, *models} - digests.keys()):
        raise CheckpointError(f"{folder / DIGESTS} lacks {', '.join(missing)}")
    for name, expected in digests.items():
        file = folder / name
        try:
            if not file.resolve(strict=True).is_relative_to(folder.resolve()) or file.is_fifo():
                raise CheckpointError(f"{folder / DIGESTS} names {name!r:.80}, expected a file inside {folder}")
            found = digest_of(file)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
        if found != expected:
            raise CheckpointError(f"{file} is damaged: its SHA-256 is {found}, expected {expected}")
    TrainerState.load_from_json(folder / STATE)


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """Return a run's latest undamaged checkpoint, with a warning if later ones are damaged; None without any.

    Raises CheckpointError if all are damaged; it names the damaged file of the latest.
    """
    damaged: list[ValueError] = []
    for folder in reversed(checkpoints_in(output_dir)):
        try:
            check_whole(folder)
        except ValueError as error:
            damaged.append(error)
        else:
            if damaged:
                warn_caller(f"{'; '.join(map(str, damaged))}: continuing from {folder} instead")
            return folder
    if damaged:
        raise CheckpointError(f"{damaged[0]}; there is no earlier checkpoint to continue from")
    return None


def write_checkpoint(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder by `fill(temporary folder)`, replacing an existing one. Raises NotSaved if the system fails."""
    try:
        write_folder(folder, fill)
    except OSError as error:
        others = [path for path in checkpoints_in(folder.parent) if path != folder]
        kept = f"the last whole checkpoint is {others[-1]}" if others else "there is no earlier checkpoint"
        raise NotSaved(error.errno, f"{error.strerror or error} while writing {folder}; {kept}") from error


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder by `fill(temporary folder)`, which is then renamed in one operation."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(folder) as new:
        new.mkdir()
        fill(new)
        for path in (*new.rglob("*"), new):
            sync(path)
        if folder.exists():
            _replace_folder(folder, new)
        else:
            replace(new, folder)
    sync(folder.parent)


def _replace_folder(folder: Path, new: Path) -> None:
    aside = folder.with_name(f".{folder.name}.old")
    with temporary_beside(folder) as gone:
        if aside.exists():  # left by a process killed before removing it
            replace(aside, gone)
        replace(folder, aside)
        try:
            replace(new, folder)
        except BaseException:
            replace(aside, folder)
            raise
    with temporary_beside(folder) as gone:
        replace(aside, gone)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; no reader sees a part of it."""
    with temporary_beside(folder) as gone:
        replace(folder, gone)


def remove_beyond(
    output_dir: str | os.PathLike[str], limit: int | None, kept: Iterable[str | os.PathLike[str]]
) -> None:
    """Remove the earliest checkpoints until `limit` are left, but none of `kept`.

    `kept` has the best one and the one just written, which is not the last after a return to an earlier step.
    """
    if limit is None:
        return
    found, names = checkpoints_in(output_dir), {Path(folder).name for folder in kept}
    others = [folder for folder in found if folder.name not in names]
    for folder in others[: max(0, len(found) - limit)]:
        remove_checkpoint(folder)


def recover_checkpoints(output_dir: str | os.PathLike[str]) -> None:
    """Remove partial checkpoints of killed processes, and put back whole ones that they had set aside."""
    folder = Path(output_dir)
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if match := _ASIDE.fullmatch(path.name):
            if (folder / match[1]).exists():
                remove_checkpoint(path)
            else:
                replace(path, folder / match[1])
        elif match := _LEFT.fullmatch(path.name):
            remove_abandoned(folder / match[1])


OPTIMIZER, OBJECTIVE, SCHEDULE, STATE, ARGUMENTS, DIGESTS = (
    "optimizer.safetensors",
    "objective.safetensors",  # parameters trained beside the model, if any
    "scheduler.json",
    "trainer_state.json",
    "training_args.json",
    "digests.json",
)
_OF_MODELS = ("*.safetensors", "*config.json")

# Settings that give the position in the data and the optimiser's state their meaning, and those that would change the
# steps to come.
_KEPT = (
    *("per_device_train_batch_size", "max_tokens_per_batch", "gradient_accumulation_steps", "seed", "data_seed"),
    *("group_by_length", "dataloader_drop_last", "remove_unused_columns", "label_smoothing_factor"),
    *("optim", "optim_in_backward", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "max_grad_norm"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "bf16", "fp16"),
    *("prompts", "batch_sampler", "multi_dataset_batch_sampler"),
)


def save_run(
    folder: Path,
    save: Callable[[Path], None],
    optimizer: Optimizer,
    schedule: Schedule,
    state: TrainerState,
    args: TrainingArguments,
    beside: Sequence[Parameter],
) -> None:
    """Write everything into `folder`, the model by `save`; `beside` are the parameters trained beside it."""
    save(folder)
    _write_arrays(folder / OPTIMIZER, optimizer.state_dict())
    if beside:
        _write_arrays(folder / OBJECTIVE, {name: array for each in beside for name, array in each.tensors()})
    write_json(folder / SCHEDULE, schedule.state_dict())
    write_json(folder / ARGUMENTS, args.to_dict())
    state.save_to_json(folder / STATE)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    digests = {file.relative_to(folder).as_posix(): digest_of(file) for file in files}
    write_json(folder / DIGESTS, digests)


def load_run(
    folder: Path,
    load: Callable[[Path], None],
    optimizer: Optimizer,
    schedule: Schedule,
    args: TrainingArguments,
    now: TrainerState,
    beside: Sequence[Parameter],
) -> TrainerState:
    """Load everything from a whole checkpoint, the model's weights by `load`, and return the state.

    Warns if the run's length differs from the checkpoint's and its learning rates depend on the length.

    Raises:
        ValueError: naming the damaged file, or the setting or fact of `now` (data, masking, number of
            processes, weights beside adapters, teacher, objective) that differs from the checkpoint's.
    """
    before, state = read_json_object(folder / ARGUMENTS), TrainerState.load_from_json(folder / STATE)
    known = {name: (before.get(name), getattr(args, name, None)) for name in _KEPT}
    facts = {"the number of examples": "num_examples", "the number of processes": "num_processes"}
    facts |= {"the dataset's fingerprint": "data", "masking": "masking", "the objective": "objective"}
    facts |= {"the fingerprint of the weights beside the adapters": "frozen", "the teacher's fingerprint": "teacher"}
    known |= {name: (getattr(state, fact), getattr(now, fact)) for name, fact in facts.items()}
    for name, (was, is_now) in known.items():
        if was != is_now:
            raise ValueError(
                f"{name} is {is_now!r}, in {folder} it was {was!r}: a run must continue with the data and "
                "settings it began with"
            )
    ends = {"max_steps": (state.max_steps, now.max_steps), "max_seconds": (before.get("max_seconds"), args.max_seconds)}
    is_done = now.max_steps is not None and now.max_steps <= state.global_step
    for name, (was, is_now) in ends.items() if args.rates_depend_on_length and not is_done else ():
        if was != is_now:
            warn_caller(
                f"{name} is {is_now}, in {folder} it was {was}: the learning rates now follow the new length, "
                "so the result differs from an uninterrupted run's"
            )
    load_beside(folder, beside)
    load(folder)
    for part, name, read in ((optimizer, OPTIMIZER, open_checkpoint), (schedule, SCHEDULE, read_json_object)):
        values = read(folder / name)
        try:
            part.load_state_dict(values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / name}: {error}") from error
    return state


def load_beside(folder: Path, beside: Sequence[Parameter]) -> None:
    """Load parameters trained beside the model. Raises CheckpointError, before any is changed, if there are others."""
    opened = open_checkpoint(folder / OBJECTIVE) if beside else {}
    expected = {name: shape for parameter in beside for name, shape in parameter.expected.items()}
    if (found := {name: opened[name].shape for name in opened}) != expected:
        raise CheckpointError(f"{folder / OBJECTIVE} is of another objective: it has {found}, expected {expected}")
    for parameter in beside:
        parameter.fill({name: np.array(opened[name]) for name in parameter.names}, parameter.precision)


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    write_safetensors(file, {name: np.require(array, requirements="C") for name, array in arrays.items()})


def _fingerprint(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.blake2b()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()[:16]


def fingerprint_of(model: Any | None) -> str | None:
    """Return the fingerprint of a model's weights; None without a model."""
    return None if model is None else _fingerprint(model.state_dict().values())


def fingerprint_beyond_checkpoints(model: Any) -> str | None:
    """Return the fingerprint of the weights that the model's checkpoints lack (those beside adapters), or None."""
    held = model.expected_tensors()
    others = [parameter.array() for parameter in model.parameters() if not held.keys() >= set(parameter.names)]
    return _fingerprint(others) if others else None
