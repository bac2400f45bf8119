"""Resident memory of processes, as Linux reports it, and the peak of a training run in its own process.

`python -m bench.memory THREADS LIBRARY CASE WORKDIR [quick]` prints the peak resident MB (VmHWM) beyond Python with
NumPy during some steps of bench.training. This module does not import bertcore, whose memory is measured.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np  # noqa: F401  counting begins with NumPy resident

STEPS = 4


def resident(key: str = "VmRSS", process: int | str = "self") -> float:
    """Return the resident MB of a process: current ("VmRSS") or peak ("VmHWM").

    Raises OSError if there is no /proc, or no such process.
    """
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024 / 1e6


def peak_of(library: str, case_name: str, workdir: Path, threads: int, quick: bool) -> float | None:
    """Return the MB that training takes in a new process, or None without /proc."""
    if not Path("/proc/self/status").exists():
        return None
    options = [str(threads), library, case_name, str(workdir), *(["quick"] if quick else [])]
    command = [sys.executable, "-m", "bench.memory", *options]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(threads: str, library: str, case_name: str, workdir: str, quick: str = "") -> None:
    """Train for some steps and print."""
    before = resident("VmRSS")
    from bench.training.cases import LOOPS, checkpoint_of, find_case, set_threads

    case = find_case(case_name, bool(quick))
    set_threads(library, int(threads))
    loop = LOOPS[library](case, checkpoint_of(case, Path(workdir)))
    loop.train(True)
    for batch in case.batches()[:STEPS]:
        loop.step(batch)
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
