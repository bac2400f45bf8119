"""The number of threads that CPU kernels use, and its source. This module does not load Numba."""

import ctypes
import math
import operator
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class ThreadCount(NamedTuple):
    """A number of threads and a description of its source."""

    count: int
    source: str


def _from_environment():
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            yield ThreadCount(int(first), f"environment ({name})")


def _read_numbers(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _group_folders(root: Path, cgroup_file: Path):
    """Yield (is v1, folder) of this process's CPU control groups and their parents, whose quotas apply too."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in (root / "cpu", root / controllers) if controllers else (root,):
            folder = mount / group.lstrip("/")
            while folder.is_relative_to(mount):
                yield bool(controllers), folder
                folder = folder.parent


def cgroup_quota(root=Path("/sys/fs/cgroup"), cgroup_file=Path("/proc/self/cgroup")) -> float | None:
    """Return the container's quota of CPUs (cpu.max of cgroup v2, cpu.cfs_quota_us of v1), or None."""
    quotas = []
    for is_v1, folder in _group_folders(Path(root), Path(cgroup_file)):
        if is_v1:
            limit = _read_numbers(folder / "cpu.cfs_quota_us") + _read_numbers(folder / "cpu.cfs_period_us")
        else:
            limit = _read_numbers(folder / "cpu.max")
        if len(limit) == 2 and limit[0] not in ("max", "-1"):
            quotas.append(int(limit[0]) / int(limit[1]))
    return min(quotas, default=None)


def sysctl(name: str) -> int | None:
    """Return the integer with this name in macOS's kernel, or None."""
    if sys.platform != "darwin":
        return None
    value = ctypes.c_int64(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value


def auxiliary_value(entry: int) -> int:
    """Return an entry of Linux's auxiliary vector, which describes the machine to a process."""
    read = ctypes.CDLL(None).getauxval
    read.restype, read.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return read(entry)


def fast_cpus(cpus: set[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return how many of these CPUs are fast: threads share work evenly, so a slow CPU would delay the others.

    Linux reports the capacity of each CPU of big.LITTLE; fast is at least two thirds of the highest, else any.
    """
    capacities = [int((_read_numbers(root / f"cpu{cpu}" / "cpu_capacity") or ["0"])[0]) for cpu in cpus]
    return sum(3 * capacity >= 2 * max(capacities) for capacity in capacities)


def _all_cpus() -> ThreadCount:
    if not hasattr(os, "sched_getaffinity"):
        fast = sysctl("hw.perflevel0.logicalcpu")
        return ThreadCount(fast, "performance cores") if fast else ThreadCount(os.cpu_count() or 1, "CPU count")
    cpus = os.sched_getaffinity(0)
    fast = fast_cpus(cpus)
    return ThreadCount(fast, "CPU affinity" if fast == len(cpus) else "fast CPUs of the affinity")


def detect_threads() -> ThreadCount:
    """Return OMP_NUM_THREADS or NUMBA_NUM_THREADS if set, else the lesser of the fast CPUs and the quota."""
    for from_environment in _from_environment():
        return from_environment
    choices = [_all_cpus()]
    quota = cgroup_quota()
    if quota is not None:
        choices.append(ThreadCount(max(1, math.ceil(quota)), f"cgroup quota ({quota:g} CPUs)"))
    return min(choices)


_chosen: ThreadCount | None = None
_here = threading.local()  # .count: the number of threads for this Python thread only
_only_one: str | None = None  # the reason why this process may have only one thread


def thread_count() -> ThreadCount:
    """Return the number of threads that kernels use now, and its source; determined at the first call."""
    global _chosen
    if _chosen is None:
        _chosen = detect_threads()
    return getattr(_here, "count", _chosen)


@contextmanager
def threads_here(count: int) -> Iterator[None]:
    """Use `count` threads in the kernels that this Python thread calls."""
    _here.count = ThreadCount(count, "threads_here")
    try:
        yield
    finally:
        del _here.count


def get_num_threads() -> int:
    """Return the number of threads that CPU kernels use now."""
    return thread_count().count


def set_num_threads(count: int) -> None:
    """Use `count` threads in the CPU kernels, in every Python thread of this process. Results do not change.

    The thread pool starts with the first kernel, with `count` threads or, if that is more, as many as the machine, the
    container or OMP_NUM_THREADS allow. A larger count after that makes more tasks, but no more threads.

    Raises:
        TypeError: if `count` is not an integer.
        ValueError: if `count` is below 1.
        RuntimeError: if `count` is above 1 in a forked process whose thread pool did not survive the fork.
    """
    global _chosen
    if isinstance(count, bool):
        raise TypeError(f"count is {count}, expected a positive integer")
    try:
        wanted = operator.index(count)
    except TypeError:
        raise TypeError(f"count is {count!r}, expected a positive integer") from None
    if wanted < 1:
        raise ValueError(f"count: expected at least 1 thread, got {wanted}")
    if wanted > 1 and _only_one is not None:
        raise RuntimeError(f"count is {wanted}, but this process has one thread ({_only_one})")
    _chosen = ThreadCount(wanted, "set_num_threads")


def use_only_one(reason: str) -> None:
    """Use one thread in this process from now on, because of `reason`."""
    global _chosen, _only_one
    _chosen, _only_one = ThreadCount(1, reason), reason
