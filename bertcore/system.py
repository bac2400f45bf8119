"""The operating system, as everything above the kernels sees it: Linux, macOS and Windows.

Other modules ask here instead of asking which system it is. Tried on Linux; the tests replace what the others lack.
"""

import contextlib
import ctypes
import errno
import importlib
import importlib.util
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _module(name: str) -> Any:
    """Return a module of the standard library, None where the system lacks it."""
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None


fcntl, msvcrt, resource = _module("fcntl"), _module("msvcrt"), _module("resource")
windows: Any = ctypes  # whose WinDLL and get_last_error exist on Windows alone

IS_LINUX, IS_WINDOWS = sys.platform == "linux", os.name == "nt"
OPENS_FOLDERS = not IS_WINDOWS  # for os.open; else a file in the folder is locked, and folders are not flushed
REPLACES_OPEN_FILES = not IS_WINDOWS  # Windows refuses while a file is open or mapped
LOCK_NAME = ".bertcore.lock"  # of the file that is locked in place of its folder
PAUSE = 0.02  # seconds between two tries
PATIENCE = 5.0  # seconds for virus scanners, and others who read a file that is to be replaced

_imported = time.perf_counter()


# --- files --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on `folder` against other threads and processes; `shared` ones do not exclude each other.

    The lock is yielded as True, or as False where the system does not lock this folder. Raises BlockingIOError if
    another holds it and `wait` is False.
    """
    file = folder if OPENS_FOLDERS else folder / LOCK_NAME
    descriptor = None
    try:  # unreadable folders, and file systems without locks (some of NFS)
        descriptor = _locked_file(file, shared, wait)
    except BlockingIOError:
        raise
    except OSError:
        pass
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)  # releases the lock, as the end of the process does
            if not OPENS_FOLDERS:
                _remove_unless_open(file)


def _locked_file(file: Path, shared: bool, wait: bool) -> int:
    while True:
        descriptor = os.open(file, os.O_RDONLY) if OPENS_FOLDERS else _created(file)
        try:
            lock(descriptor, shared=shared, wait=wait)
            if OPENS_FOLDERS or _is_at(file, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _created(file: Path) -> int:
    for _ in range(5):
        with contextlib.suppress(PermissionError):  # it is being removed, or the folder is not ours
            return os.open(file, os.O_RDWR | os.O_CREAT)
        time.sleep(PAUSE)
    return os.open(file, os.O_RDWR | os.O_CREAT)


def _is_at(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:  # removed by the process that had it locked
        return False


def _remove_unless_open(file: Path) -> None:
    with contextlib.suppress(OSError):  # Windows does not remove what others have open
        file.unlink()


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file until it is closed.

    Raises BlockingIOError if another holds a lock and `wait` is False, OSError where files cannot be locked.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return
    if msvcrt is None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    while True:
        try:
            return _lock_on_windows(descriptor, shared)
        except BlockingIOError:
            if not wait:
                raise
        time.sleep(PAUSE)  # a wait within Windows could not be interrupted


class _Overlapped(ctypes.Structure):
    """Windows' OVERLAPPED: the place of a lock in its file."""

    _fields_ = (
        ("internal", ctypes.c_size_t), ("internal_high", ctypes.c_size_t),
        ("offset", ctypes.c_uint32), ("offset_high", ctypes.c_uint32), ("event", ctypes.c_void_p),
    )  # fmt: skip


_EXCLUSIVE, _AT_ONCE, _LOCK_VIOLATION = 2, 1, 33  # of LockFileEx


def _lock_on_windows(descriptor: int, shared: bool) -> None:
    call = windows.WinDLL("kernel32", use_last_error=True).LockFileEx
    call.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 4, ctypes.POINTER(_Overlapped)]
    place = _Overlapped(offset_high=1)  # beyond the end: Windows lets no one read a locked byte
    flags = _AT_ONCE if shared else _AT_ONCE | _EXCLUSIVE
    if not call(msvcrt.get_osfhandle(descriptor), flags, 0, 1, 0, ctypes.byref(place)):
        code = windows.get_last_error()
        if code == _LOCK_VIOLATION:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise OSError(errno.ENOLCK, f"LockFileEx failed with the error {code}")


def replace(source: Path, target: Path) -> None:
    """Rename a file or folder to `target`, in place of a file that is there, in one operation.

    Where open files cannot be replaced it tries again for PATIENCE seconds.
    """
    end = time.monotonic() + (0 if REPLACES_OPEN_FILES else PATIENCE)
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if time.monotonic() >= end:
                raise
        time.sleep(PAUSE)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk where the system can."""
    if path.is_dir() and not (OPENS_FOLDERS and os.access(path, os.R_OK)):
        return
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)  # Windows flushes what is open for writing
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def open_files() -> tuple[int, int] | None:
    """Return how many files this process may have open and how many it has, or None without a limit."""
    if resource is None:
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else (most, len(os.listdir("/dev/fd")))


def write_utf8() -> None:
    """Write UTF-8 to standard output, also where Python would encode a file or a pipe otherwise (Windows)."""
    if IS_WINDOWS and "PYTHONIOENCODING" not in os.environ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


# --- processes and threads ----------------------------------------------------------------------------------------


def is_bound_to_cpus() -> bool:
    """Return whether this process may use only some of the CPUs."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)


def step_back(by: int) -> None:
    """Let other threads go before this one, where each thread has a priority of its own (Linux)."""
    if IS_LINUX:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + by)


def process_age() -> float:
    """Return the seconds since this process started; on systems without /proc, since this module was imported."""
    since_import = time.perf_counter() - _imported
    try:
        # Field 22, counted after the name in parentheses, which may itself hold spaces (man 5 proc).
        started = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return since_import
    return max(age, since_import)


def cpu_info(key: str) -> str:
    """Return what Linux reports of the first CPU under a name, "" for nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


STATUS = Path("/proc/self/status")


def check_resident_is_reported() -> None:
    """Raise OSError where the system does not report the memory of a process (Linux does)."""
    if not STATUS.exists():
        raise OSError(f"the memory of a process is read from {STATUS}, which is not here")


def resident_megabytes(key: str = "VmRSS") -> float:
    """Return megabytes (10^6 bytes) of this process, by their name in Linux's table: VmRSS now, VmHWM at most."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines())
    return int(lines[key].split()[0]) * 1024 / 1e6
