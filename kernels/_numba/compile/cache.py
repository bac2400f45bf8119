"""Where compiled kernels are kept, and a word to the user when they have to be compiled.

Each kernel, compiled for some types, is a file of its own, named by what it was made from and for: the code of its
module and of those that it imports (sources.py; Numba would not notice that a helper in another file had changed), its
types, CPU and features, vector level, versions of Python, Numba and llvmlite. So any number of processes may fill one
cache at once, a cache may be shared by different machines and versions of this package, and one that can only be read
serves as well. Files unused for UNUSED_DAYS go.
"""

import hashlib
import os
import pickle
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, event
from numba.core.serialize import dumps

from ...own_name import PACKAGE
from ..threads import size_pool
from .folder import cache_folder
from .isa import LEVEL
from .sources import ROOT, Sources, package_digests

UNUSED_DAYS = 90
_DAY = 24 * 3600.0


def _digest(file: Path) -> str:
    if file.is_relative_to(ROOT):
        return package_digests(cache_folder())[file.relative_to(ROOT).as_posix()]
    return Sources().digest(file)  # a kernel of somebody else's


class _Locator(caching._CacheLocator):
    """Numba's own insist on a folder that can be written."""

    def __init__(self, function, file):
        self._function, self._py_file = function, file

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func, py_file)

    def get_cache_path(self):
        return str(cache_folder() / self._function.__module__)

    def get_source_stamp(self):
        return _digest(Path(self._py_file)), sys.implementation.cache_tag, numba.__version__, llvmlite.__version__

    def get_disambiguator(self):
        return ""  # Numba takes the line, which moves with every comment above it


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (Numba's name)


class _Files:
    """Compiled code by key, a file each, which is written beside its place and moved there."""

    def __init__(self, folder: Path, name: str, stamp: Any):
        self._folder, self._name, self._stamp = folder, name, stamp

    def _file(self, key: Any) -> tuple[Path, bytes]:
        made_from = repr((self._stamp, key)).encode()
        return self._folder / f"{self._name}.{hashlib.sha256(made_from).hexdigest()[:20]}.nbc", made_from

    def load(self, key: Any) -> Any:
        """What was saved under `key`; None if nothing was, or if the file is damaged (a machine that stopped)."""
        file, made_from = self._file(key)
        try:
            content = file.read_bytes()
        except OSError:
            return None
        if content[:32] != hashlib.sha256(content[32:]).digest():
            return None
        stored_for, data = pickle.loads(content[32:])
        if stored_for != made_from:
            return None
        _note_use(file)
        return data

    def save(self, key: Any, data: Any) -> None:
        """Raises OSError where that cannot be written."""
        file, made_from = self._file(key)
        content = dumps((made_from, data))
        temporary = file.with_suffix(f".{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


class KernelCache(caching.FunctionCache):
    """The cache of one kernel: as Numba's, but for where it is and how its files are kept."""

    _impl_class = _Implementation

    def __init__(self, function):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(Path(self.cache_path), self._impl.filename_base, locator.get_source_stamp())

    def _index_key(self, sig, codegen):
        return *super()._index_key(sig, codegen), LEVEL.name

    def load_overload(self, sig, target_context):
        size_pool()
        return super().load_overload(sig, target_context)

    def save_overload(self, sig, data):
        """Keep what was compiled; where that cannot be, go on and say so."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _say_not_kept(error.strerror or str(error))
        else:
            _remove_unused(cache_folder().parent)


@cache
def _say_not_kept(reason: str) -> None:
    print(f"{PACKAGE}: compiled kernels are not kept: {cache_folder()}: {reason}", file=sys.stderr, flush=True)


# --- files that nobody uses ---------------------------------------------------------------------------------------


def _note_use(file: Path) -> None:
    """A file's time of modification tells when it was last used, give or take a day."""
    with suppress(OSError):  # a cache that can only be read
        if time.time() - file.stat().st_mtime > _DAY:
            os.utime(file)


@cache
def _remove_unused(folder: Path) -> None:
    """Remove compiled kernels that no process has loaded for UNUSED_DAYS, of any version; once per process.

    Whoever would have loaded one in that moment compiles it again.
    """
    oldest = time.time() - UNUSED_DAYS * _DAY
    kinds = "numba-*/*/*.nb[ci]", "numba-*/*/*.tmp*", "numba-*/sources-*"
    for file in [file for kind in kinds for file in folder.glob(kind)]:
        with suppress(OSError):  # another process was faster, or it is not ours
            if file.stat().st_mtime < oldest:
                file.unlink()
    for emptied in [*folder.glob("numba-*/*/"), *folder.glob("numba-*/")]:
        with suppress(OSError):  # not empty
            emptied.rmdir()


# --- compilations -------------------------------------------------------------------------------------------------


class _Compilations(event.Listener):
    """Calls `seen` with the name of each kernel of ours when its compilation begins."""

    def __init__(self, seen):
        self._seen = seen

    def on_start(self, event):
        dispatcher = event.data["dispatcher"]
        if isinstance(dispatcher._cache, KernelCache):
            self._seen(f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}")

    def on_end(self, event):
        pass


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list to which the name of every kernel that is compiled within the block is added."""
    names: list[str] = []
    with event.install_listener("numba:compile", _Compilations(names.append)):
        yield names


@cache
def _say_compiling() -> None:
    print(
        f"{PACKAGE}: compiling kernels for this CPU (first run, cached afterwards) ...",
        file=sys.stderr,
        flush=True,
    )


def _say_kernel(name: str) -> None:
    _say_compiling()
    print(f"  {name.removeprefix(PACKAGE + '.')}", file=sys.stderr, flush=True)


event.register("numba:compile", _Compilations(_say_kernel))
