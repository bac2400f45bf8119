"""Reading config.json."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .replacing import check_complete

CONFIG_NAME = "config.json"
WEIGHTS_ENDINGS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")

MOST_DEPTH = 64  # of objects and lists in each other: an error that showed a value 990 deep would fail itself


@contextlib.contextmanager
def naming_config(source) -> Iterator[None]:
    """A block in which an error about a config, "config: KEY is ...", is a CheckpointError that names its source."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, CheckpointError) or not str(error).startswith("config: "):
            raise
        raise CheckpointError(f"{source}: {error}") from error


def checkpoint_folder(path) -> Path:
    """The folder of the checkpoint at `path`: the folder itself, or the one a file of weights is in.

    CheckpointError when there is neither.
    """
    path = Path(path)
    if path.is_dir():
        return path
    if path.is_file() and path.name.endswith(WEIGHTS_ENDINGS):
        return path.parent
    what = "is a file" if path.exists() else "does not exist"
    raise CheckpointError(
        f"{path} {what}, expected the folder of a checkpoint ({CONFIG_NAME} and weights), "
        f"or a file of weights in it ({', '.join(WEIGHTS_ENDINGS)})"
    )


def no_file(file: Path) -> str | None:
    """What is wrong with what stands at `file`, where a file is expected; None when nothing stands there."""
    if file.is_symlink() and not file.exists():
        return (
            f"{file} is a link to {os.readlink(file)}, which does not exist, expected a file: "
            "a folder of the Hugging Face cache is copied with what its links point to (cp -rL)"
        )
    if file.exists() and not file.is_file():
        return f"{file} is {'a folder' if file.is_dir() else 'a device or a pipe'}, expected a file"
    return None


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; CheckpointError when it is not readable, not JSON or not an object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file} cannot be read: its JSON is nested too deeply") from error
    if _is_too_deep(value):
        raise CheckpointError(f"{file} cannot be read: its JSON is nested too deeply")
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a JSON {type(value).__name__}, expected an object")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        found = (inner.values() if isinstance(inner, dict) else inner for inner in level)
        level = [inner for values in found for inner in values if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def read_config(folder, name: str = CONFIG_NAME) -> dict[str, Any]:
    """The configuration of the model in `folder` (or beside a file of weights): its config.json, as a dict.

    Raises CheckpointError when the folder or its file `name` is missing, or the file is not a JSON object.
    """
    folder = checkpoint_folder(folder)
    file = folder / name
    if not file.is_file():
        here = sorted(entry.name for entry in folder.iterdir())
        missing = f"{folder} has no {name}; it holds {', '.join(here[:10]) or 'nothing'}"
        raise CheckpointError(no_file(file) or missing)
    check_complete(file)
    return read_json_object(file)
