"""Reading config.json."""

import json
import os
from pathlib import Path
from typing import Any

from .errors import CheckpointError

CONFIG_NAME = "config.json"


def checkpoint_folder(folder) -> Path:
    """`folder` as a Path; CheckpointError when it is not an existing folder."""
    folder = Path(folder)
    if folder.is_dir():
        return folder
    what = "is a file" if folder.exists() else "does not exist"
    raise CheckpointError(
        f"{folder} {what}; expected the folder of a checkpoint ({CONFIG_NAME} and weights); "
        "`hf download ORGANISATION/NAME --local-dir FOLDER` (pip install huggingface_hub) fetches one from the hub"
    )


def no_file(file: Path) -> str | None:
    """What is wrong with what stands at `file`, where a file is expected; None when nothing stands there."""
    if file.is_symlink() and not file.exists():
        return (
            f"{file} is a link to {os.readlink(file)}, which does not exist; expected a file "
            "(a folder of the Hugging Face cache is copied with what its links point to: cp -rL)"
        )
    if file.exists() and not file.is_file():
        return f"{file} is {'a folder' if file.is_dir() else 'a device or a pipe'}; expected a file"
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
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a JSON {type(value).__name__}; expected an object")
    return value


def read_config(folder) -> dict[str, Any]:
    """The configuration of the model in `folder`: its config.json, as a dict.

    Raises CheckpointError when the folder or its config.json is missing, or the file is not a JSON object.
    """
    folder = checkpoint_folder(folder)
    file = folder / CONFIG_NAME
    if not file.is_file():
        here = sorted(entry.name for entry in folder.iterdir())
        missing = f"{folder} has no {CONFIG_NAME}; it holds {', '.join(here[:10]) or 'nothing'}"
        raise CheckpointError(no_file(file) or missing)
    return read_json_object(file)
