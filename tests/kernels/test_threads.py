"""The number of threads: what decides it, how it is set, and that the kernels follow it."""

import os
import re

import numpy as np
import pytest

from bertcore.kernels import threads
from tests.processes import run_python
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "_only_one", None)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_environment(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    assert threads.detect_threads() == (5, "environment (NUMBA_NUM_THREADS)")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert threads.thread_count() == (3, "environment (OMP_NUM_THREADS)")


@pytest.mark.parametrize("value", ["²", "0", "-2", "many", ""])
def test_invalid_environment_is_ignored(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads.detect_threads().count >= 1
    assert "environment" not in threads.detect_threads().source


def test_quota_of_cgroup_v2_is_the_least_of_the_parents(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") == 1.5


@pytest.mark.parametrize(("capacities", "cpus", "expected"), [
    ({0: 250, 1: 250, 2: 780, 3: 1024}, {0, 1, 2, 3}, 2),  # big.LITTLE with two kinds of fast CPUs
    ({0: 250, 1: 250, 2: 780, 3: 1024}, {0, 1}, 2),  # the fastest there are
    ({}, {0, 5}, 2),
])  # fmt: skip
def test_slow_cpus_get_no_thread(tmp_path, monkeypatch, capacities, cpus, expected):
    for cpu, capacity in capacities.items():
        (tmp_path / f"cpu{cpu}").mkdir()
        (tmp_path / f"cpu{cpu}" / "cpu_capacity").write_text(f"{capacity}\n")
    assert threads.fast_cpus(cpus, tmp_path) == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus, raising=False)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: None)
    monkeypatch.setattr(threads, "fast_cpus", lambda cpus: expected)
    source = "CPU affinity" if expected == len(cpus) else "fast CPUs of the affinity"
    assert threads.thread_count() == (expected, source)


@pytest.mark.parametrize(("fast", "expected"), [(6, (6, "performance cores")), (None, (8, "CPU count"))])
def test_macos(monkeypatch, fast, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(threads, "sysctl", lambda name: fast)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: None)
    assert threads.thread_count() == expected


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_quota_of_cgroup_v1(tmp_path, controllers):
    folder = tmp_path / controllers
    folder.mkdir()
    (tmp_path / "cgroup").write_text(f"4:memory:/x\n3:cpuset:/\n1:{controllers}:/docker/123\n0::/\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") == 2.5


def test_quota_decides_when_it_is_the_least(monkeypatch):
    monkeypatch.setattr(threads, "cgroup_quota", lambda: 0.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert threads.thread_count() == (1, "cgroup quota (0.5 CPUs)")


@pytest.mark.parametrize("count", [1, 3, np.int64(7)])
def test_set_num_threads(count):
    threads.set_num_threads(count)
    assert threads.get_num_threads() == count
    assert threads.thread_count().source == "set_num_threads"


@pytest.mark.parametrize(("count", "error", "message"), [
    (0, ValueError, "at least 1 thread, got 0"),
    (-3, ValueError, "at least 1 thread, got -3"),
    (2.0, TypeError, "count is 2.0, expected a positive integer"),
    ("2", TypeError, "count is '2', expected a positive integer"),
    (True, TypeError, "count is True, expected a positive integer"),
])  # fmt: skip
def test_invalid_thread_counts(count, error, message):
    threads.set_num_threads(3)
    refuses(error, re.escape(message), threads.set_num_threads, count)
    assert threads.get_num_threads() == 3


def test_process_limited_to_one_thread():
    threads.use_only_one("an example")
    threads.set_num_threads(1)
    refuses(RuntimeError, r"count is 2, but this process has one thread \(an example\)", threads.set_num_threads, 2)
    assert threads.get_num_threads() == 1


# Prints how many threads the kernels think they have, and of how many Numba's pool is.
_MODEL = """
import os, sys
import numpy as np
{before}
import bertcore
{between}
assert "numba" not in sys.modules
from bertcore.kernels import gelu, linear
gelu(np.ones(3, np.float32))  # one task, which starts the pool as any other
x = np.ones((256, 300), np.float32)
for _ in range(20):
    y = linear(x, np.ones((200, 300), np.float32))
assert (y == 300).all()
import numba
assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS
print(bertcore.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
"""


def model_threads(before="", between="", **variables):
    return run_python(_MODEL.format(before=before, between=between), **variables)[0]


def test_pool_size_set_before_the_first_kernel():
    assert model_threads(between="bertcore.set_num_threads(3)", OMP_NUM_THREADS="2") == "3 3"
    assert model_threads(between="bertcore.set_num_threads(1)", OMP_NUM_THREADS="2") == "1 2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_affinity_end_to_end():
    only = min(os.sched_getaffinity(0))
    assert model_threads(before=f"os.sched_setaffinity(0, {{{only}}})") == "1 1"
    assert model_threads(between=f"os.sched_setaffinity(0, {{{only}}})") == "1 1"
