"""Where compiled kernels are kept, and a word to the user when they have to be compiled.

Numba notices that a kernel's own file changed, but not that a helper it calls from another file did. Helpers shared by
several operations therefore live in this folder (kernels/_numba), and the cache folder's name carries a digest of it.
"""

import getpass
import hashlib
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from numba.core import config, event

_PACKAGE = __name__.removesuffix("._numba.cache")


def _user_name():
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user id without a passwd entry
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


def candidates() -> list[Path]:
    """Folders that may hold the cache, the most wanted first."""
    folders = []
    if config.CACHE_DIR:  # NUMBA_CACHE_DIR: the user said where Numba's caches belong
        folders.append(Path(config.CACHE_DIR) / "bertcore")
    if os.environ.get("BERTCORE_CACHE_DIR"):
        folders.insert(0, Path(os.environ["BERTCORE_CACHE_DIR"]))
    if os.environ.get("XDG_CACHE_HOME"):
        folders.append(Path(os.environ["XDG_CACHE_HOME"]) / "bertcore")
    with suppress(RuntimeError):  # no home folder
        folders.append(Path.home() / ".cache" / "bertcore")
    folders.append(Path(tempfile.gettempdir()) / f"bertcore-{_user_name()}")
    return folders


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels: the first candidate that can be written."""
    for folder in candidates():
        if _writable(folder / f"numba-{_digest()}"):
            return folder / f"numba-{_digest()}"
    raise OSError(
        "no writable folder for compiled kernels; set BERTCORE_CACHE_DIR. Tried: "
        + ", ".join(str(folder) for folder in candidates())
    )


@contextmanager
def numba_cache_in_our_folder():
    """Numba functions decorated inside are cached in `cache_folder()`; the user's own functions are not touched."""
    previous, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = previous


class _CompilationNotice(event.Listener):
    """Says once per process, on stderr, that a kernel of ours is being compiled."""

    def __init__(self):
        self._said = False

    def on_start(self, event):
        if not self._said and event.data["dispatcher"].py_func.__module__.startswith(_PACKAGE):
            self._said = True
            print(
                "bertcore: compiling kernels for this CPU (first run, cached afterwards) ...",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event):
        pass


event.register("numba:compile", _CompilationNotice())
