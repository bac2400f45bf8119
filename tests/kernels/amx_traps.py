"""Run tests on the machine code for AMX on a CPU without AMX: its instructions are trapped (amx_traps.c), all others
are the CPU's own. It does not test Linux's permission, how Linux saves the tiles, or speed.

python -m tests.kernels.amx_traps ARGUMENTS OF PYTEST

With BERTCORE_ISA=avx512_bf16 in the environment it runs the code of that level, without traps. It requires a C compiler
and AVX-512 with VNNI and bfloat16 (some machines run bfloat16 but hide it in CPUID); the exit code is NOT_HERE without
them.
"""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
BUILD = Path(__file__).parents[2] / "build"
FLAGS = "-O2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC"
NOT_HERE = 77
AVX512 = "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"


def why_not() -> str | None:
    """Return why code for AMX cannot run here with trapped instructions, judged by CPUID, or None."""
    import llvmlite.binding as llvm

    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the traps are Linux's on x86-64"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    features = llvm.get_host_cpu_features()
    missing = [name for name in AVX512 if not features.get(name)]
    return f"this CPU lacks {', '.join(missing)}" if missing else None


@functools.cache
def library() -> ctypes.CDLL:
    """The traps, compiled once."""
    made = BUILD / f"amx_traps-{SOURCE.stat().st_mtime_ns}.so"
    if not made.exists():
        BUILD.mkdir(exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", *FLAGS, str(SOURCE), "-o", str(unfinished)], check=True)
        unfinished.replace(made)
    return ctypes.CDLL(str(made))


def begin(level: str = "amx") -> None:
    """Trap the instructions and pretend that the CPU has them; call it before the kernels are imported."""
    from tests.kernels.amx_code import pretend

    if why_not() is not None or not library().traps_install():
        sys.exit(NOT_HERE)
    pretend(level)


def computed() -> int:
    """Return how many instructions were trapped."""
    library().traps_computed.restype = ctypes.c_long
    return library().traps_computed()


if __name__ == "__main__":
    begin(os.environ.get("BERTCORE_ISA", "amx"))
    code = pytest.main(["-p", "no:faulthandler", *sys.argv[1:]])  # which takes SIGILL, too
    print(f"{computed()} instructions of AMX were trapped")
    sys.exit(code)
