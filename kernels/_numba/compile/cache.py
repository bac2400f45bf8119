"""The disk cache of compiled kernels, and a message to the user when they have to be compiled.

Each kernel and signature has its own file, named by a digest of its dependencies: the code of its module
and all modules that it imports (Numba itself would miss changes in other files), argument types, CPU and features,
level, and versions of Python, Numba and llvmlite. Any number of processes may fill one cache, machines and versions of
this package may share it, and a read-only cache works as well. Files that another user could have written are neither
read nor replaced. Files unused for UNUSED_DAYS are deleted. A missing kernel may be shipped (shipped.py).

Of the source code, comments, docstrings and layout do not count, nor do the modules in AROUND_KERNELS: changes that
cannot change a kernel recompile nothing. Parsing this package takes half a second, so its digests are kept beside the
compiled kernels, under a digest of the text of all files.
"""

import ast
import hashlib
import json
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, config, event
from numba.core.serialize import dumps

from ...cache_folder import make_private, read_private, usable_cache_folder, write_private
from ...settings import PACKAGE, PROJECT, setting
from ..threads import size_pool
from .isa import LEVEL
from .shipped import fixed_key, read_shipped

UNUSED_DAYS = 90
_DAY = 24 * 3600.0
ROOT = Path(__file__).parents[2]
# These modules run and cache kernels, but are not part of them.
AROUND_KERNELS = (
    "_numba/compile/cache.py", "_numba/threads.py", "_numba/amx/permission.py",
)  # fmt: skip
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


@cache
def cache_folder() -> Path:
    """Return the folder of compiled kernels: below BERTCORE_CACHE_DIR, NUMBA_CACHE_DIR or the user's cache folder."""
    name = f"numba-{numba.__version__}"
    if config.CACHE_DIR and not setting("CACHE_DIR"):
        return Path(config.CACHE_DIR) / PROJECT / name  # the user's folder for Numba's caches
    return usable_cache_folder(holding=name) / name


class Sources:
    """Digests of modules; each module is read once.

    Args:
        root: the folder imported as `name`.
    """

    def __init__(self, root: Path = ROOT, name: str = PACKAGE):
        self._root, self._name = root, name
        self._around = {root / file for file in AROUND_KERNELS}
        self._trees: dict[Path, ast.Module] = {}
        self._modules: dict[Path, tuple[str, set[Path]]] = {}

    def digest(self, file: Path) -> str:
        """Return the digest of a module and of all that it imports, directly or not."""
        found, waiting = set(), {file}
        while waiting:
            file = waiting.pop()
            found.add(file)
            waiting |= self._module(file)[1] - found
        return _sha256("".join(sorted(self._module(file)[0] for file in found)))

    def digest_outside(self, file: Path) -> str:
        """Return the digest of a module outside the package, read anew, as are others there that it imports."""
        self._modules = {each: found for each, found in self._modules.items() if each.is_relative_to(self._root)}
        found = self.digest(file)
        self._trees = {}
        return found

    def _module(self, file: Path) -> tuple[str, set[Path]]:
        """Return the digest of a module's own code, and the files that it imports."""
        if file not in self._modules:
            tree = self._tree(file)
            imported = {path for node in ast.walk(tree) for path in self._imported(node, file)}
            self._modules[file] = _sha256(ast.dump(tree)), imported - self._around
        return self._modules[file]

    def _tree(self, file: Path) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = tree = ast.parse(file.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, _DOCUMENTED) and node.body and ast.get_docstring(node, clean=False) is not None:
                    del node.body[0]
        return self._trees[file]

    def _imported(self, node: ast.AST, file: Path) -> Iterator[Path]:
        """Yield the files that an import statement of `file` takes its names from."""
        if not isinstance(node, ast.ImportFrom):
            return
        module = node.module or ""
        if node.level:
            folder = file.parents[node.level - 1]
        elif f"{module}.".startswith(f"{self._name}."):
            folder, module = self._root, module[len(self._name) + 1 :]
        else:
            return
        for alias in node.names:
            yield from self._home(folder.joinpath(*filter(None, module.split("."))), alias.name)

    def _home(self, place: Path, name: str) -> Iterator[Path]:
        """Yield the file that defines `name` of the module or package at `place` (without its suffix)."""
        if place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
            return
        for submodule in (place / f"{name}.py", place / name / "__init__.py"):
            if submodule.is_file():
                yield submodule
                return
        package = place / "__init__.py"
        if not package.is_file():
            return
        for node in self._tree(package).body:
            if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
                yield from self._imported(ast.ImportFrom(node.module, [ast.alias(name)], node.level), package)
                return
        yield package


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def package_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each module of this package by its path; kept in `folder` if it is writable."""
    texts = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in sorted(ROOT.rglob("*.py"))}
    kept = folder / f"sources-{hashlib.sha256(repr(texts).encode()).hexdigest()[:20]}.json"
    for read in (lambda: read_private(kept), lambda: read_shipped(kept.name)):
        with suppress(OSError, ValueError):  # missing or damaged
            found = json.loads(read())
            if found.keys() == texts.keys():
                return found
    sources = Sources()
    digests = {name: sources.digest(ROOT / name) for name in texts}
    with suppress(OSError):  # a read-only folder
        write_private(kept, json.dumps(digests).encode())
    return digests


_sources = cache(Sources)


def _digest(file: Path) -> str:
    if file.is_relative_to(ROOT):
        return package_digests(cache_folder())[file.relative_to(ROOT).as_posix()]
    return _sources().digest_outside(file)


class _Locator(caching._CacheLocator):
    """Replaces Numba's locators, which insist on a writable folder."""

    def __init__(self, function, file):
        self._function, self._py_file = function, file

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func, py_file)

    def get_cache_path(self):
        return str(cache_folder() / self._function.__module__)

    def ensure_cache_path(self):
        make_private(Path(self.get_cache_path()))

    def get_source_stamp(self):
        return _digest(Path(self._py_file)), sys.implementation.cache_tag, numba.__version__, llvmlite.__version__

    def get_disambiguator(self):
        return ""  # Numba uses the line number, which changes with every comment above it


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (Numba's name)


class _Files:
    """Compiled code by key, one file each, written atomically."""

    def __init__(self, folder: Path, name: str, stamp: tuple[Any, ...]):
        self._folder, self._name, self._stamp = folder, name, stamp

    def _named(self, key: tuple[Any, ...]) -> tuple[str, bytes]:
        made_from = repr((self._stamp, key)).encode()
        return f"{self._name}.{hashlib.sha256(made_from).hexdigest()[:20]}.nbc", made_from

    def load(self, key: tuple[Any, ...]) -> Any:
        """Return the data saved under `key`, else the shipped data; None if both are missing or damaged."""
        with suppress(OSError):  # unpickling runs code: no other user may have written it
            name, made_from = self._named(key)
            data = _checked(read_private(self._folder / name), made_from)
            if data is not None:
                _note_use(self._folder / name)
                return data
        with suppress(OSError):
            name, made_from = self._named(fixed_key(key))
            return _checked(read_shipped(f"{self._folder.name}/{name}"), made_from)

    def save(self, key: tuple[Any, ...], data: object) -> None:
        """Write the data; raises OSError if that is impossible."""
        name, made_from = self._named(key)
        content = dumps((made_from, data))
        write_private(self._folder / name, hashlib.sha256(content).digest() + content)


def _checked(content: bytes, made_from: bytes) -> Any:
    """Return the data in a file's content; None if it is damaged or was made from another source."""
    if content[:32] != hashlib.sha256(content[32:]).digest():
        return None
    stored_for, data = pickle.loads(content[32:])
    return data if stored_for == made_from else None


class KernelCache(caching.FunctionCache):
    """The cache of one kernel: Numba's, with another place and file format."""

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
        """Save compiled code; if that fails, print a message and go on."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _say_not_kept(error.strerror or str(error))
        else:
            _remove_unused(cache_folder().parent)


@cache
def _say_not_kept(reason: str) -> None:
    print(f"{PACKAGE}: compiled kernels are not kept: {cache_folder()}: {reason}", file=sys.stderr, flush=True)


# --- unused files -------------------------------------------------------------------------------------------------


def _note_use(file: Path) -> None:
    """Record the use of a file in its modification time, at most once a day."""
    with suppress(OSError):  # a read-only cache
        if time.time() - file.stat().st_mtime > _DAY:
            os.utime(file)


@cache
def _remove_unused(folder: Path) -> None:
    """Remove compiled kernels of any version that no process has loaded for UNUSED_DAYS; once per process."""
    oldest = time.time() - UNUSED_DAYS * _DAY
    kinds = "numba-*/*/*.nb[ci]", "numba-*/*/*.tmp*", "numba-*/sources-*"
    for file in [file for kind in kinds for file in folder.glob(kind)]:
        with suppress(OSError):  # removed by another process, or not ours
            if file.stat().st_mtime < oldest:
                file.unlink()
    for emptied in [*folder.glob("numba-*/*/"), *folder.glob("numba-*/")]:
        with suppress(OSError):  # not empty
            emptied.rmdir()


# --- compilations -------------------------------------------------------------------------------------------------


class _Compilations(event.Listener):
    """Call `seen` with the name of each kernel of this package when its compilation begins."""

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
    """Yield a list that collects the names of the kernels compiled within the block."""
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
