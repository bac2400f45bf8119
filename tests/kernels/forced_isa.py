"""Run a test file again for another level (BERTCORE_ISA is read once per process).

Code for AMX and bfloat16 can run on CPUs without them, with trapped instructions (amx_traps.py).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.amx_traps import NOT_HERE

FORCED = os.environ.get("BERTCORE_ISA")

not_when_forced = pytest.mark.skipif(bool(FORCED), reason="already the forced run")


def supported(isa: str) -> bool:
    from bertcore.kernels._numba.compile import isa as cpu

    features = cpu.host_features()
    return any(level.name == isa and all(map(features.get, level.requires)) for level in cpu.LEVELS)


def pytest_sessionstart() -> None:
    """Check the level of such a run, whose plugin this is."""
    from bertcore.kernels._numba import LEVEL

    assert LEVEL.name == FORCED


def run_tests_under(isa: str, file: str, *arguments: str) -> None:
    """Run pytest on `file` in a process compiled for `isa`; fails with its output."""
    is_trapped = isa in ("amx", "avx512_bf16") and not supported(isa)
    if not (is_trapped or supported(isa)):
        pytest.skip(f"this CPU has no {isa}")
    # Without conftest.py, which imports unneeded peers; Hypothesis's own profile "ci" equals the one defined there.
    command = [
        sys.executable, "-m", "tests.kernels.amx_traps" if is_trapped else "pytest", "-q", "-x", "-n0", "-p",
        "no:cacheprovider", "-p", __name__, "--noconftest", "--hypothesis-profile=ci", file, *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "BERTCORE_ISA": isa}
    result = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    if is_trapped and result.returncode == NOT_HERE:
        pytest.skip("this machine lacks instructions for bfloat16, or a C compiler")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
    if is_trapped:
        assert ("\n0 instructions of AMX were trapped" in result.stdout) == (isa != "amx"), result.stdout
