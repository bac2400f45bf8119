"""Python code in a process of its own, with an environment of its own; calls in threads of their own."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Variables of a developer's environment that would change the tests.
_DECIDING = ("BERTCORE_", "NUMBA_", "OMP_", "XDG_CACHE_HOME")


def environment(**variables: str) -> dict[str, str]:
    """Return this environment without variables that set threads, caches and backends, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DECIDING)}
    if "BERTCORE_CACHE_DIR" in os.environ:  # compiled kernels are shared with the other tests
        kept["BERTCORE_CACHE_DIR"] = os.environ["BERTCORE_CACHE_DIR"]
    return {**kept, **variables}


def _obey_permissions() -> None:
    """Hold root to file permissions, too: drop CAP_DAC_OVERRIDE for the next program."""
    if sys.platform == "linux" and os.getuid() == 0:
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


def start_python(code: str, *arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.Popen:
    """Start a new Python, by the command `before`, that runs `code` at the repository's root; outputs are piped."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, *arguments],
        env=environment(**variables),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_obey_permissions if os.name == "posix" else None,
    )


def finish(process: subprocess.Popen, timeout: float = 300) -> tuple[str, str]:
    """Return (stdout, stderr) of a process that must succeed in time."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    return out.strip(), err


def run_python(code: str, *arguments: str, timeout: float = 300, **variables: str) -> tuple[str, str]:
    """Run `code` in a new Python that must succeed; return (stdout, stderr)."""
    return finish(start_python(code, *arguments, **variables), timeout)


def in_threads(work, arguments) -> None:
    """Call `work` with each argument in a thread of its own, all at once."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
