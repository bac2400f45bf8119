"""Kernels compiled in advance: the package bertcore_kernels, made by packaging/kernels/.

It has a folder for each level, with the files of a user's cache if BERTCORE_ISA selects that level, and a list of their
digests (LIST). The user's cache comes first. Nothing is written here. A package for other versions of Python, Numba or
llvmlite, altered files, and files that another user could have written are not used; a line on stderr says so, and the
kernels are compiled.
"""

import hashlib
import importlib.util
import json
import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba

from ...cache_folder import read_private
from ...settings import PACKAGE, PROJECT
from .isa import LEVEL

LIST = "digests.json"


class Shipped(NamedTuple):
    """The package: its folder, the digests of its files, and the reason why it is not used ("" if it is)."""

    folder: Path
    digests: dict[str, str]
    problem: str


def made_for() -> dict[str, str]:
    """Return the versions that compiled code depends on."""
    python = "{0.name} {1.major}.{1.minor}{2}".format(  # "t" if it is free-threaded
        sys.implementation, sys.version_info, getattr(sys, "abiflags", "")
    )
    return {"Python": python, "numba": numba.__version__, "llvmlite": llvmlite.__version__}


def write_list(folder: Path) -> None:
    """Write LIST for a folder that holds a folder for each level."""
    files = sorted(file for file in folder.glob("*/**/*") if file.is_file())
    digests = {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / LIST).write_text(json.dumps({"made_for": made_for(), "digests": digests}, indent=1))


@cache
def find() -> Shipped | None:
    """Return the installed package without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(f"{PROJECT}_kernels")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    try:
        listed = json.loads(read_file(folder / LIST))
        found, digests = listed["made_for"], listed["digests"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Shipped(folder, {}, str(error) if isinstance(error, OSError) else f"{LIST} is damaged")
    others = [
        f"{name} {found.get(name)} (this is {version})"
        for name, version in made_for().items()
        if found.get(name) != version
    ]
    return Shipped(folder, digests, f"it is made for {', '.join(others)}" if others else "")


def read_shipped(name: str) -> bytes:
    """Return a file of this level. Raises OSError if it is missing or must not be used."""
    shipped, name = find(), f"{LEVEL.name}/{name}"
    if shipped is None or not (shipped.problem or name in shipped.digests):
        raise FileNotFoundError(name)
    try:
        if shipped.problem:
            raise OSError(shipped.problem)
        content = read_file(shipped.folder / name)
        if hashlib.sha256(content).hexdigest() != shipped.digests[name]:
            raise OSError(f"{shipped.folder / name} has a SHA-256 other than that in {LIST}")
    except OSError as error:
        _say_not_used(str(error))
        raise
    return content


def summary() -> str:
    """Return a line about the package, for the user."""
    shipped = find()
    if shipped is None:
        return f"none: {PROJECT}-kernels is not installed"
    if shipped.problem:
        return f"not used: {shipped.problem}"
    count = sum(name.startswith(f"{LEVEL.name}/") and name.endswith(".nbc") for name in shipped.digests)
    return f"{shipped.folder}, {count} for {LEVEL.name}"


@cache
def _say_not_used(reason: str) -> None:
    print(f"{PACKAGE}: kernels of {PROJECT}-kernels are not used: {reason}", file=sys.stderr, flush=True)


def read_file(file: Path) -> bytes:
    """Return the content of a file that only this user, or users who can change Numba as well, could have written.

    The latter because many installations are writable by the user's group, and run Numba's code anyway.
    """
    try:
        return read_private(file)
    except PermissionError:
        own, packages = os.stat(numba.__file__), Path(numba.__file__).parents[1]
        inside = [file, *(place for place in file.parents if place.is_relative_to(packages) and place != packages)]
        if not file.is_relative_to(packages) or any(_is_weaker(place.lstat(), own) for place in inside):
            raise
        return file.read_bytes()


def _is_weaker(status: os.stat_result, than: os.stat_result) -> bool:
    """Return whether more users may change one file than another."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    same = (status.st_uid, status.st_gid) == (than.st_uid, than.st_gid)
    return stat.S_ISLNK(status.st_mode) or not same or bool(others & ~than.st_mode)


def fixed_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of a shipped kernel for its key in the cache: the level's CPU replaces this one."""
    signature, (triple, _, _), digests, level = key
    return signature, (triple, LEVEL.llvm_cpu, LEVEL.llvm_features), digests, level
