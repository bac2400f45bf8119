"""The options that a run goes on with: kept in each checkpoint, and compared when the command resumes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError
from bertcore.training import TrainerCallback
from bertcore.training.callbacks import TrainerState
from bertcore.training.checkpoints import STATE

# Those that may change: where the run is, when it ends, what it tells; and the data, which are compared themselves.
FREE = {
    "command", "run", "traceback", "backend", "out", "resume", "corpus", "data", "eval", "skip_malformed", "epochs",
    "max_steps", "max_seconds", "early_stopping", "save_steps", "log_steps",
}  # fmt: skip
PATHS = {"model", "generator", "teacher", "student", "tokenizer"}


class OptionsOfRun(TrainerCallback):
    """Keeps a command's options in the checkpoints of its run.

    Args:
        args: the command's arguments.
    """

    def __init__(self, args: argparse.Namespace):
        self._options = {name: _kept(name, value) for name, value in vars(args).items() if name not in FREE}

    def state_dict(self) -> dict[str, Any]:
        """The options by their names."""
        return self._options

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare with those that the checkpoint was made with; CommandError if one of them is another."""
        for name, now in self._options.items():
            if state.get(name) != now:
                raise CommandError(
                    f"{_told(name, now)} cannot go on from a checkpoint that was made with "
                    f"{_told(name, state.get(name))}: resume with the options of the first run"
                )


def check_options(args: argparse.Namespace, checkpoint: Path) -> None:
    """CommandError if a checkpoint was made with other options, or by no command."""
    kept = TrainerState.load_from_json(checkpoint / STATE).callbacks.get(OptionsOfRun.__name__)
    if kept is None:
        raise CommandError(f"{checkpoint} was not made by bertcore {args.command}: it has no options to go on with")
    OptionsOfRun(args).load_state_dict(kept)


def _kept(name: str, value: Any) -> Any:
    """What JSON has of an option; a folder or file that exists as a whole path, the same from any folder."""
    if name in PATHS and value is not None and Path(value).exists():
        return str(Path(value).resolve())
    return [_kept(name, each) for each in value] if isinstance(value, list | tuple) else value


def _told(name: str, value: Any) -> str:
    """An option as it is given, or that it is not."""
    option = "--" + name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option} {value}"
