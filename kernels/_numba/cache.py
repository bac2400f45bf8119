"""Where compiled kernels are kept, and a word to the user when they have to be compiled.

Numba notices that a kernel's own file changed, but not that a helper it calls from another file did. Helpers shared by
several operations therefore live in this folder (kernels/_numba), and the cache folder's name carries a digest of it.
"""

import hashlib
import os
import secrets
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from numba.core import config, event

from ..cache_folder import writable_cache_folder

_PROCESS = secrets.token_hex(4)
_PACKAGE = __name__.removesuffix("._numba.cache")


def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels, below BERTCORE_CACHE_DIR, else NUMBA_CACHE_DIR, else the user's cache folder."""
    if config.CACHE_DIR and not os.environ.get("BERTCORE_CACHE_DIR"):
        folder = Path(config.CACHE_DIR) / "bertcore"  # the user said where Numba's caches belong
    else:
        folder = writable_cache_folder()
    return folder / f"numba-{_digest()}"


@contextmanager
def numba_cache_in_our_folder():
    """Numba functions decorated inside are cached in `cache_folder()`; the user's own functions are not touched."""
    previous, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = previous


def name_files_by_process(dispatcher) -> None:
    """Give this process's cache files of a compiled function names of their own.

    Numba numbers them: two processes that compile the same function for float32 and float64 at once would both write
    file 1, and its index might then lead a call to the other's code. (An index entry that is overwritten only costs
    time.)
    """
    file = dispatcher._cache._cache_file
    numbered = file._data_name
    file._data_name = lambda number: f"{_PROCESS}.{numbered(number)}"


def recompile_damaged(dispatcher) -> None:
    """Compile again, instead of failing at every start, where the cache holds something that is not what was written
    (a full disk, a machine that stopped)."""
    stored = dispatcher._cache
    load = stored.load_overload

    def load_or_discard(*key):
        try:
            return load(*key)
        except Exception:  # a damaged pickle can raise anything
            stored.flush()
            return None

    stored.load_overload = load_or_discard


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
