"""A pretended Windows, on Linux: locks by LockFileEx, and open files that cannot be replaced or removed.

`pytest -n0 -p tests.windows FILE` runs any tests so. Pretended is what `bertcore.system` knows of: paths, signals and
processes stay Linux's.
"""

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

from bertcore import system


def pretend(patch) -> None:
    """Replace what Windows lacks and refuses, by `patch(object, name, value)`."""
    for name, value in {
        "fcntl": None,
        "resource": None,
        "msvcrt": SimpleNamespace(get_osfhandle=lambda descriptor: descriptor),
        "windows": SimpleNamespace(WinDLL=Kernel32, get_last_error=lambda: Kernel32.error),
        "IS_LINUX": False,
        "IS_WINDOWS": True,
        "OPENS_FOLDERS": False,
        "REPLACES_OPEN_FILES": False,
        "PATIENCE": 0.1,
        "_remove_unless_open": remove_unless_locked,
    }.items():
        patch(system, name, value)
    for name in ("replace", "rename", "unlink"):
        patch(os, name, careful(getattr(os, name)))


class Kernel32:
    """LockFileEx by flock, whose locks belong to an opening of the file, too, and end with it."""

    error = 0

    def __init__(self, name, use_last_error):
        assert (name, use_last_error) == ("kernel32", True)
        self.LockFileEx = lambda *arguments: self._lock(*arguments)  # which takes attributes

    def _lock(self, handle, flags, reserved, low, high, place):
        assert (reserved, low, high, place._obj.offset_high) == (0, 1, 0, 1)
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if flags & 2 else fcntl.LOCK_SH) | (fcntl.LOCK_NB if flags & 1 else 0))
        except BlockingIOError:
            Kernel32.error = 33
            return 0
        except OSError:
            Kernel32.error = 1
            return 0
        return 1


def remove_unless_locked(file: Path) -> None:
    """Remove a file unless another process has it locked; one that has it open without a lock notices."""
    descriptor = None
    try:
        descriptor = os.open(file, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            os.remove(file)
    except OSError:
        pass
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_paths() -> set[str]:
    """The files that this process has open or mapped."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    mapped = (line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines())
    return {os.readlink(link) for link in links if os.path.lexists(link)} | {name for names in mapped for name in names}


def careful(function):
    """A function of os that raises PermissionError if a path, or a file below it, is open."""

    def call(*paths, dir_fd=None, **options):
        names = [os.path.realpath(os.path.join(f"/proc/self/fd/{dir_fd}" if dir_fd else "", path)) for path in paths]
        for used in open_paths():
            if any(used == name or used.startswith(f"{name}/") for name in names):
                raise PermissionError(13, "The process cannot access the file", os.fspath(paths[0]))
        return function(*paths, **({"dir_fd": dir_fd} if dir_fd else {}), **options)

    return call


def pytest_configure(config) -> None:
    pretend(setattr)
