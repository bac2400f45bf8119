"""Writing a checkpoint that transformers and bertcore read back."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .config import CONFIG_NAME
from .reading import WEIGHTS_NAME
from .replacing import made_folder, replace_files

STORABLE = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def save_checkpoint(
    folder,
    config: Mapping[str, Any],
    parameters: Mapping[str, np.ndarray],
    *,
    config_name: str = CONFIG_NAME,
    weights_name: str = WEIGHTS_NAME,
) -> None:
    """Writes config.json and model.safetensors (or files of other names) into `folder`, made when it is not there.

    Both are written completely under temporary names and then take their places together (`replace_files`): a failure
    (a full disk, an interrupt) leaves the old files as they were, and a process that is killed the old ones, the new
    ones, or a config.json that says that saving was interrupted; never the config of one model beside the weights of
    another. An index of a sharded checkpoint, which the new file replaces, is removed; other files in the folder are
    not touched.

    Raises TypeError for a parameter that is not a NumPy array of numbers (device arrays are copied by the caller) and
    for a config that JSON cannot hold, before anything is written; OSError, naming the file, when it cannot be written.
    """
    arrays = {name: _storable(name, array) for name, array in parameters.items()}
    config_text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    folder = made_folder(folder)
    replace_files(
        folder,
        {
            config_name: lambda file: file.write_text(config_text, encoding="utf-8"),
            weights_name: lambda file: write_safetensors(file, arrays),
        },
    )
    (folder / f"{weights_name}.index.json").unlink(missing_ok=True)


def _storable(name: str, array) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"parameter {name} is {type(array).__module__}.{type(array).__name__}, expected a NumPy array")
    if array.dtype.name not in STORABLE:
        raise TypeError(f"parameter {name} has dtype {array.dtype}, expected one of {', '.join(sorted(STORABLE))}")
    # safetensors writes the buffer as it lies: a transposed view would be stored scrambled, without an error.
    # (ascontiguousarray would turn a scalar into one element.)
    return np.require(array, requirements="C")


def write_safetensors(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` by name; OSError, naming the file, where it cannot be written (a full disk)."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), file, metadata={"format": "pt"})  # transformers refuses a file without this entry
    except SafetensorError as error:  # of the system's errors, it has the number in the text alone
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
