"""The checkpoints of a run: folders that appear whole or not at all.

A folder is written under a temporary name, brought to the disk, and renamed. One of the same step, which a run that
returned to an earlier one is replacing, is set aside first. A process that is killed at any moment leaves the
checkpoints that were there, one of them perhaps set aside, from where `sweep_checkpoints` puts it back; an error (a
full disk) leaves them all, and what was begun is removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from bertcore.checkpoint.files import sweep, sync, temporary_beside

_NAME = re.compile(r"checkpoint-(\d+)")
_LEFT = re.compile(r"\.(checkpoint-\d+)\.\d+\.[0-9a-f]+\.tmp")
_ASIDE = re.compile(r"\.(checkpoint-\d+)\.old")


class NotSaved(OSError):
    """A checkpoint could not be written; the message names the last one that is whole."""


def checkpoint_folder(output_dir: str | os.PathLike, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return Path(output_dir) / f"checkpoint-{step}"


def checkpoints_in(output_dir: str | os.PathLike) -> list[Path]:
    """The checkpoints of a run, the latest last."""
    folder = Path(output_dir)
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=_step)


def _step(folder: Path) -> int:
    return int(_NAME.fullmatch(folder.name)[1])


def write_checkpoint(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder by `fill(the temporary folder)`; one that stands in its place is replaced.

    Raises:
        NotSaved: if the system could not write it.
    """
    try:
        write_folder(folder, fill)
    except OSError as error:
        others = [path for path in checkpoints_in(folder.parent) if path != folder]
        kept = f"the last whole checkpoint is {others[-1]}" if others else "there is no earlier checkpoint"
        raise NotSaved(error.errno, f"{error.strerror or error} while writing {folder}; {kept}") from error


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder by `fill(a temporary folder)`, which then takes its place at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(folder) as new:
        new.mkdir()
        fill(new)
        for path in (*new.rglob("*"), new):
            sync(path)
        if folder.exists():
            _replace_folder(folder, new)
        else:
            os.replace(new, folder)
    sync(folder.parent)


def _replace_folder(folder: Path, new: Path) -> None:
    aside = folder.with_name(f".{folder.name}.old")
    with temporary_beside(folder) as gone:
        if aside.exists():  # of a process that was killed before it removed it
            os.replace(aside, gone)
        os.replace(folder, aside)
        try:
            os.replace(new, folder)
        except BaseException:
            os.replace(aside, folder)
            raise
    with temporary_beside(folder) as gone:
        os.replace(aside, gone)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; no reader sees a part of it."""
    with temporary_beside(folder) as gone:
        os.replace(folder, gone)


def remove_beyond(output_dir: str | os.PathLike, limit: int | None, kept: Iterable[str | os.PathLike]) -> None:
    """Remove the checkpoints of the first steps so that `limit` are left, but none of `kept`: the best, and the one
    just written, which after a return to an earlier step is not that of the last."""
    if limit is None:
        return
    found, names = checkpoints_in(output_dir), {Path(folder).name for folder in kept}
    others = [folder for folder in found if folder.name not in names]
    for folder in others[: max(0, len(found) - limit)]:
        remove_checkpoint(folder)


def sweep_checkpoints(output_dir: str | os.PathLike) -> None:
    """Remove what processes that were killed while they saved have left, and put back what they had set aside."""
    folder = Path(output_dir)
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if match := _ASIDE.fullmatch(path.name):
            if (folder / match[1]).exists():
                remove_checkpoint(path)
            else:
                os.replace(path, folder / match[1])
        elif match := _LEFT.fullmatch(path.name):
            sweep(folder / match[1])
