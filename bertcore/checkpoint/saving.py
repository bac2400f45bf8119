"""Writing a checkpoint that transformers and bertcore read back."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .config import CONFIG_NAME
from .reading import INDEX_NAME, WEIGHTS_NAME

STORABLE = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def save_checkpoint(folder, config: Mapping[str, Any], parameters: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors and config.json into `folder`, which is made when it is not there.

    Both files are written completely under temporary names and then put in place, each in one step, so that a failure
    (a full disk, an interrupt) leaves the old files as they were. An index of a sharded checkpoint, which the new file
    replaces, is removed; other files in the folder are not touched.

    Raises TypeError for a parameter that is not a NumPy array of numbers (device arrays are copied by the caller) and
    for a config that JSON cannot hold, before anything is written; OSError, naming the file, when it cannot be written.
    """
    arrays = {name: _storable(name, array) for name, array in parameters.items()}
    config_text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as cleanup:
        weights_file = _temporary(folder, WEIGHTS_NAME, cleanup)
        config_file = _temporary(folder, CONFIG_NAME, cleanup)
        with _naming(folder / CONFIG_NAME):
            config_file.write_text(config_text, encoding="utf-8")
        with _naming(folder / WEIGHTS_NAME):
            _write_safetensors(weights_file, arrays)
            shutil.copymode(config_file, weights_file)  # safetensors makes files that only their owner may read
            os.replace(weights_file, folder / WEIGHTS_NAME)
        with _naming(folder / CONFIG_NAME):
            os.replace(config_file, folder / CONFIG_NAME)
    (folder / INDEX_NAME).unlink(missing_ok=True)


def _storable(name: str, array) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"parameter {name} is {type(array).__module__}.{type(array).__name__}; expected a NumPy array")
    if array.dtype.name not in STORABLE:
        raise TypeError(f"parameter {name} has dtype {array.dtype}; expected one of {', '.join(sorted(STORABLE))}")
    # safetensors writes the buffer as it lies: a transposed view would be stored scrambled, without an error.
    # (ascontiguousarray would turn a scalar into one element.)
    return np.require(array, requirements="C")


def _write_safetensors(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    save_file(dict(arrays), file, metadata={"format": "pt"})  # transformers refuses a file without this entry
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _temporary(folder: Path, name: str, cleanup: contextlib.ExitStack) -> Path:
    """A fresh name beside `name` (same folder: os.replace cannot cross file systems), removed on the way out."""
    file = folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    cleanup.callback(file.unlink, missing_ok=True)
    return file


@contextlib.contextmanager
def _naming(target: Path) -> Iterator[None]:
    """A block in which an error of the system names `target` and not the temporary file, which no user knows."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
