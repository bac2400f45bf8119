"""How much memory some steps take, in a process of its own.

`python -m bench.training.memory THREADS LIBRARY CASE WORKDIR` prints the most that was resident (Linux's VmHWM) beyond
Python with NumPy, in MB.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np  # noqa: F401  what is resident with it is where counting begins

from bench.memory import resident

STEPS = 4


def peak_of(library: str, case_name: str, workdir: Path, threads: int, quick: bool) -> float | None:
    """MB that training takes in a new process; None where there is no /proc to read it from."""
    if not Path("/proc/self/status").exists():
        return None
    options = [str(threads), library, case_name, str(workdir), *(["quick"] if quick else [])]
    command = [sys.executable, "-m", "bench.training.memory", *options]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main(threads: str, library: str, case_name: str, workdir: str, quick: str = "") -> None:
    """Train for some steps and print."""
    before = resident("VmRSS")
    from bench.training.cases import find_case
    from bench.training.loops import LOOPS, checkpoint_of, set_threads

    case = find_case(case_name, bool(quick))
    set_threads(library, int(threads))
    loop = LOOPS[library](case, checkpoint_of(case, Path(workdir)))
    loop.train(True)
    for batch in case.batches()[:STEPS]:
        loop.step(batch)
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
