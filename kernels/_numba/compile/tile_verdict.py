"""Whether AMX's tiles may be taken unasked: what came of trying them, once on each kind of machine.

A wrong instruction ends a process (SIGILL, or LLVM's "Cannot select"), which no handler of Python's undoes, and a
virtual machine may promise what it does not do. So the tiles are tried in a process of its own, which computes
kernels/tile_proof.py on them; whatever else it does than to end with 0 in time, they are not taken. What came of it is
kept beside the compiled kernels, under the CPU, Linux and all versions that it depends on, so that it costs once;
processes that start together wait for one of them. That it took too long is kept for an hour: the machine may have been
busy, but not everybody who starts meanwhile shall wait that long. Where nothing can be kept (a folder that can only be
read, and does not hold it), nothing is tried and the tiles are not taken: every process would pay for it.

The child is no fork: forks of a process whose threads hold locks hang. It compiles for the same target as the process
that waits for it, which finds its kernels in the cache.
"""

import contextlib
import hashlib
import importlib
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba

from ...own_name import PACKAGE, variable
from .folder import cache_folder
from .sources import package_digests

PROOF = "tile_proof"  # the module that the child runs
MOST_SECONDS = 300.0  # it compiles three kernels: half a minute on one busy core
NEVER, AN_HOUR, FOREVER = 0.0, 3600.0, None  # for how long a verdict is kept, in seconds
_PROVED = f"{PROOF}.py", "linear/cpu/__init__.py", "attention/cpu/__init__.py"
_OF_CPU = "vendor_id", "cpu family", "model", "model name", "stepping", "microcode"
_SENT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP  # by somebody else than the processor
_PROGRAM = "import importlib, sys; sys.path[:] = {path!r}; importlib.import_module({module!r}).prove({level!r})"


def why_not_trusted(level: str) -> str | None:
    """Why a level with tiles, which this process may use, is not taken unasked; None if it is."""
    try:
        file = verdict_file(level)
        found = _kept(file)
        if found is None:
            with _alone(file.with_suffix(".lock")):
                found = _kept(file) or _tried(level, file)
    except OSError as error:
        return f"they were not tried, for that cannot be kept: {error}"
    reason = found["reason"]
    return reason if reason is None or not found["is_kept"] else f"{reason} ({file} keeps that)"


def verdict_file(level: str) -> Path:
    """Where it is kept what came of trying a level on this kind of machine."""
    folder = cache_folder()
    digests = package_digests(folder)
    versions = sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, platform.release()
    key = level, *versions, llvm.get_host_cpu_name(), _cpu(), [digests[name] for name in _PROVED]
    return folder / f"tiles-{hashlib.sha256(repr(key).encode()).hexdigest()[:20]}.json"


def _cpu() -> list[str]:
    """What Linux calls the first CPU."""
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
        return [line for line in first.splitlines() if line.partition(":")[0].strip() in _OF_CPU]
    return [platform.processor()]


def _kept(file: Path) -> dict[str, Any] | None:
    """What is kept in a file; None if there is nothing, or nothing whole."""
    try:
        found = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(found, dict) or "reason" not in found:
        return None
    until = found.get("until")
    is_over = until is not None and not 0 <= until - time.time() <= AN_HOUR  # or the clock was set back
    return None if is_over else {**found, "is_kept": True}


def _keep(file: Path, verdict: dict[str, Any]) -> None:
    temporary = file.with_suffix(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_text(json.dumps(verdict))
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """While no other process is in here; Linux lets go of the lock when its process ends. Raises OSError where no file
    can be written."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("w") as lock:
        fcntl = importlib.import_module("fcntl")  # other systems, which have no tiles, lack it
        with contextlib.suppress(OSError):  # a file system without locks: each tries for itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tried(level: str, file: Path) -> dict[str, Any]:
    """Try a level, and keep what came of it unless that was an accident."""
    reason, seconds = try_level(level)
    until = None if seconds is FOREVER else time.time() + seconds
    verdict = {"level": level, "reason": reason, "until": until, "cpu": _cpu()}
    is_kept = seconds != NEVER
    if is_kept:
        _keep(file, verdict)
    return {**verdict, "is_kept": is_kept}


def try_level(level: str) -> tuple[str | None, float | None]:
    """(why a level is not to be trusted or None, for how many seconds that is kept)."""
    python = sys.executable or ""
    if getattr(sys, "frozen", False) or not Path(python).name.startswith("python"):
        return f"there is no Python to try them in: sys.executable is {python!r}", NEVER
    print(f"{PACKAGE}: trying this CPU's tiles (AMX) in a process of its own, once ...", file=sys.stderr, flush=True)
    program = _PROGRAM.format(path=sys.path, module=f"{PACKAGE}.{PROOF}", level=level)
    try:
        done = subprocess.run(
            [python, "-c", program], env={**os.environ, variable("ISA"): level}, timeout=MOST_SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"the process that tried them took longer than {MOST_SECONDS:.0f} s"
        return f"{said}, so they are tried again in an hour", AN_HOUR
    except OSError as error:
        return f"no process could be started to try them: {error}", NEVER
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if done.returncode < 0:
        return f"the process that tried them ended by {_signal_name(-done.returncode)}", (
            NEVER if -done.returncode in _SENT else FOREVER
        )
    return None if done.returncode == 0 else f"the process that tried them said: {said}", FOREVER


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
