"""Compiling .cu text for the CPU with g++, once per content."""

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
CACHE = Path(__file__).parents[2] / "build" / "cuda_emulator"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    # Without these two, libraries of different kernels would share their inline variables.
    "-fno-gnu-unique",
    "-fvisibility=hidden",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
)
EXPORT = """
extern "C" __attribute__((visibility("default"))) int emulator_launch_{index}(emulator::Request *request) {{
  return emulator::launch(&{kernel}, request);
}}
"""


@functools.cache
def cuda_include_folders():
    """Folders of CUDA's own headers, from the PyPI packages of the `test` extra; empty if they are not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        include = Path(root) / "cu13" / "include"
        if (include / "cuda_fp16.h").is_file():
            return (include, include / "cccl")
    return ()


def unavailable_reason():
    """Why nothing can be built here, or None."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if not cuda_include_folders():
        return 'CUDA headers are not installed: pip install -e ".[test]"'
    return None


@functools.cache
def _headers_text():
    return "".join(path.read_text() for path in sorted(INCLUDE.glob("*.h")))


def build(text, kernels, target_arch, defines=()):
    """Path of the library with an entry point emulator_launch_<i> for each of `kernels` of the source `text`."""
    exports = "".join(EXPORT.format(index=i, kernel=kernel) for i, kernel in enumerate(kernels))
    source = f'#include "cuda_emulator.h"\n{text}\n{exports}'
    macros = ("CUDA_EMULATOR", f"TARGET_ARCH={target_arch}0", *defines)
    flags = (*FLAGS, *(f"-D{macro}" for macro in macros))
    content = "\0".join((source, _headers_text(), *flags))
    library = CACHE / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one test run wait for each other instead of doing it twice
            if not library.exists():
                _compile(source, flags, library)
    return library


def _compile(source, flags, library):
    includes = [f"-I{folder}" for folder in (INCLUDE, *cuda_include_folders())]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        text = Path(scratch) / "kernels.cpp"
        text.write_text(source)
        made = Path(scratch) / "kernels.so"
        command = ["g++", *flags, *includes, str(text), "-o", str(made), "-ldl"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"g++ refuses the kernels:\n{result.stderr[:8000]}")
        os.replace(made, library)


def source_line(library, address):
    """Where the instruction at `address` of a built library comes from: "file:line in file:line", innermost first."""
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
