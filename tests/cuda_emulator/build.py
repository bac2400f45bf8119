"""Compiling .cu text for the CPU with g++, once per content."""

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
CUBLASLT = Path(__file__).with_name("cublaslt.cpp")
RACE_CHECK = Path(__file__).parent / "races.cpp"
CACHE = Path(__file__).parents[2] / "build" / "cuda_emulator"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-fno-threadsafe-statics",
    # Without these two, libraries of different kernels would share their inline variables.
    "-fno-gnu-unique",
    "-fvisibility=hidden",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
)
RACES = "EMULATOR_RACES"  # the macro of libraries that check for races (include/races.h)
RACE_FLAGS = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")
INSTEAD_OF_SANITIZER = ("-nodefaultlibs", "-lstdc++", "-lm", "-lgcc_s", "-lgcc", "-lc")
# NVRTC contracts a * b + c into one operation; g++ does so below -O2 only among the expensive optimisations.
FUSED = ("-mfma",) if platform.machine() == "x86_64" else ()
FUSED += ("-ffp-contract=fast", "-fexpensive-optimizations")
EXPORT = """
extern "C" __attribute__((visibility("default"))) int emulator_launch_{index}(emulator::Request *request) {{
  return emulator::launch(&{kernel}, request);
}}
"""


@functools.cache
def cuda_include_folders():
    """Return the folders of CUDA's headers, from the PyPI packages of the `test` extra; empty if not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        include = Path(root) / "cu13" / "include"
        if (include / "cuda_fp16.h").is_file():
            return (include, include / "cccl")
    return ()


@functools.cache
def can_fuse():
    """Return whether this CPU has fused multiply-add; without it products and sums are rounded separately."""
    if platform.machine() != "x86_64":
        return True
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and " fma " in cpuinfo.read_text()


def unavailable_reason():
    """Return why kernels cannot be built here, or None."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if not cuda_include_folders():
        return 'CUDA headers are not installed: pip install -e ".[test]"'
    return None


@functools.cache
def _headers_text():
    return "".join(path.read_text() for path in (*sorted(INCLUDE.glob("*.h")), RACE_CHECK))


def build(text, kernels, target_arch, defines=()):
    """Return the path of the library with an entry point emulator_launch_<i> for each of the `kernels` of `text`."""
    exports = "".join(EXPORT.format(index=i, kernel=kernel) for i, kernel in enumerate(kernels))
    source = f'#include "cuda_emulator.h"\n{text}\n{exports}'
    macros = ("CUDA_EMULATOR", f"TARGET_ARCH={target_arch}0", *defines)
    arithmetic = FUSED if can_fuse() else ("-ffp-contract=off",)
    flags, linked = (*FLAGS, *arithmetic, *(f"-D{macro}" for macro in macros)), ()
    if RACES in defines:
        check = _made_once(f"races-{_digest(*flags)}.o", _compile, RACE_CHECK, (*flags, "-O2", "-c"))
        linked = (str(check), *INSTEAD_OF_SANITIZER)
        flags = (*flags, *RACE_FLAGS)
    header = _made_once(f"headers-{_digest(*flags)}/cuda_emulator.h.gch", _compile, INCLUDE / "cuda_emulator.h", flags)

    def compile_source(library):
        text = library.with_suffix(".cpp")
        text.write_text(source)
        _compile(library, text, (*flags, *linked, "-shared", "-ldl", f"-I{header.parent}"))

    return _made_once(f"{_digest(source, *flags)}.so", compile_source)


@functools.cache
def build_cublaslt():
    """Return the path of the library that replaces cuBLASLt (cublaslt.cpp)."""
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared")
    return str(_made_once(f"{_digest(CUBLASLT.read_text(), *flags)}.so", _compile, CUBLASLT, flags))


def _digest(*parts):
    return hashlib.sha256("\0".join((_headers_text(), *parts)).encode()).hexdigest()[:24]


def _made_once(name, make, *args):
    """Return the file of this name in the cache, which `make(file, *args)` writes if it is absent."""
    file = CACHE / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one test run wait for each other instead of doing it twice
            if not file.exists():
                with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                    made = Path(scratch) / file.name
                    make(made, *args)
                    os.replace(made, file)
    return file


def _compile(made, text, flags):
    includes = [f"-I{folder}" for folder in (INCLUDE, *cuda_include_folders())]
    command = ["g++", str(text), *flags, *includes, "-o", str(made)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"g++ refuses the kernels:\n{result.stderr[:8000]}")


def source_line(library, address):
    """Return the source of an instruction of a built library: "file:line in file:line", innermost first."""
    command = ["addr2line", "-i", "-s", "-e", str(library), hex(address)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown line"
    lines = [line.split(" ")[0] for line in result.stdout.splitlines()]
    return " in ".join(line for line in lines if ".h:" not in line) or "unknown line"


@functools.cache
def load(library):
    return ctypes.CDLL(str(library))
