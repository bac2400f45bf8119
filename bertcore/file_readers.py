"""Readers of files that hold a whole model, by the ending of the file's name.

`import bertcore` fills the table and `checkpoint.resolve` reads it: the formats build on checkpoints and models, which
therefore cannot import them.
"""

from collections.abc import Callable
from typing import Any

FILE_READERS: dict[str, Callable[[Any], Any]] = {}  # each takes the file's path and returns that of a folder
