"""How many threads the CPU kernels use, and where that number came from. Does not load Numba."""

import math
import operator
import os
from pathlib import Path
from typing import NamedTuple


class ThreadCount(NamedTuple):
    """A number of threads and, in words, what decided it."""

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
    """(is v1, folder) of this process's CPU control groups and their parents; a parent's quota binds too."""
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
    """CPUs granted by the container (cpu.max of cgroup v2, cpu.cfs_quota_us of v1), or None without a limit."""
    quotas = []
    for is_v1, folder in _group_folders(Path(root), Path(cgroup_file)):
        if is_v1:
            limit = _read_numbers(folder / "cpu.cfs_quota_us") + _read_numbers(folder / "cpu.cfs_period_us")
        else:
            limit = _read_numbers(folder / "cpu.max")
        if len(limit) == 2 and limit[0] not in ("max", "-1"):
            quotas.append(int(limit[0]) / int(limit[1]))
    return min(quotas, default=None)


def detect_threads() -> ThreadCount:
    """OMP_NUM_THREADS or NUMBA_NUM_THREADS when set; else the least of CPU affinity and the container's quota."""
    for from_environment in _from_environment():
        return from_environment
    if hasattr(os, "sched_getaffinity"):
        choices = [ThreadCount(len(os.sched_getaffinity(0)), "CPU affinity")]
    else:
        choices = [ThreadCount(os.cpu_count() or 1, "CPU count")]
    quota = cgroup_quota()
    if quota is not None:
        choices.append(ThreadCount(max(1, math.ceil(quota)), f"cgroup quota ({quota:g} CPUs)"))
    return min(choices)


_chosen: ThreadCount | None = None
_only_one: str | None = None  # why this process may have no more than one


def thread_count() -> ThreadCount:
    """The number of threads the kernels use now, and where it came from; decided at the first question."""
    global _chosen
    if _chosen is None:
        _chosen = detect_threads()
    return _chosen


def get_num_threads() -> int:
    """The number of threads the CPU kernels use now."""
    return thread_count().count


def set_num_threads(count: int) -> None:
    """Use `count` threads in the CPU kernels from now on, in every Python thread of this process. Changes no result.

    The pool of threads is made when the first kernel runs, with as many as are asked for then, and not fewer than the
    machine, the container or OMP_NUM_THREADS give: a larger count after that divides the work into more tasks, but is
    not given more threads.

    Raises:
        TypeError: a count that is no integer.
        ValueError: a count below 1.
        RuntimeError: a count above 1 in a forked process whose pool of threads did not survive the fork.
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
    """Compute with one thread in this process for good, because of `reason`."""
    global _chosen, _only_one
    _chosen, _only_one = ThreadCount(1, reason), reason
