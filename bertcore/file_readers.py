"""Readers of files that hold a whole model, by the ending of the file's name.

`import bertcore` fills the table and `checkpoint.resolve` reads it: the formats build on checkpoints and models, which
therefore cannot import them.
"""

from collections.abc import Callable
from typing import Any

FILE_READERS: dict[str, Callable[[Any], Any]] = {}  # each takes the file's path and returns that of a folder
_opened: dict[str, str] = {}  # by folder, the file as it was named


def opened_file(file: Any) -> Any:
    """Return the folder that has the model of a file, by the reader of its ending."""
    _opened[str(folder := FILE_READERS[file.suffix](file))] = str(file)
    return folder


def naming_files(message: str) -> str:
    """Return a message with files in place of the folders that they were unpacked into."""
    for folder, file in list(_opened.items()):  # another thread may open a file meanwhile
        message = message.replace(folder, file)
    return message
