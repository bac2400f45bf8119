"""Errors of a tokenizer's settings, which its files or the caller give."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from bertcore.checkpoint.files import CheckpointError


class WrongSetting(ValueError):
    """What is wrong with the setting `name`, wherever it was read."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


@contextlib.contextmanager
def naming_files(folder: Path, given: Collection[str]) -> Iterator[None]:
    """A block in which a setting that is wrong, and not one of those `given` by the caller, is a CheckpointError that
    names the folder."""
    try:
        yield
    except WrongSetting as error:
        if error.name in given:
            raise
        raise CheckpointError(f"tokenizer files of {folder}: {error}") from error
