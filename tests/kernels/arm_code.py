"""Code for 64-bit ARM on another machine: kernels are compiled for it without being run, and llvm-mca reads them."""

import os
import platform
import runpy
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite.binding import targets

from bertcore.kernels import threads

PACKAGING = Path(__file__).parents[2] / "packaging" / "kernels"
TRIPLE = "aarch64-unknown-linux-gnu"
# What Linux says of a CPU of each level (isa.py).
AUXILIARY = {"neon": {}, "neon_dotprod": {16: 1 << 20}, "neon_i8mm": {16: 1 << 20, 26: 1 << 13 | 1 << 14}}


def pretend(level: str, cpu: str = "generic") -> None:
    """Make Numba compile for a CPU of this level, LLVM's `cpu`; to be called before the kernels are imported."""
    os.environ.pop("BERTCORE_ISA", None)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    platform.machine = lambda: "aarch64"
    llvm.get_process_triple = targets.get_default_triple = lambda: TRIPLE
    llvm.get_host_cpu_name = lambda: cpu
    threads.auxiliary_value = lambda entry: AUXILIARY[level].get(entry, 0)


# From its call on kernels are compiled and not run.
compile_only = runpy.run_path(str(PACKAGING / "compile_kernels.py"))["compile_only"]
