"""Tell what can run here: each backend (tried with a small softmax, a GPU with a product, too) and if it cannot run,
why and what to install; the CPU, the threads, the folder of compiled kernels, the GPU and the versions of what bertcore
builds on.

The exit code is 1 if the backend in force cannot run."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

import bertcore
from bertcore import kernels
from bertcore.cli.machine import cpu_info, cpu_model
from bertcore.kernels.dispatch import AUTO, IMPLEMENTATIONS
from bertcore.kernels.own_name import setting, variable

HELP = "tell what can run here, and what to install"
EXAMPLES = """\
examples:
  bertcore doctor
  bertcore doctor --backend cupy    (is this one ready?)"""

PACKAGES = ("numpy", "numba", "llvmlite", "tbb", "safetensors", "tokenizers", "ml_dtypes", "torch", "transformers")

AMX = ("amx-tile", "amx-int8", "amx-bf16")

Rows = list[tuple[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The report has no arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    problems = {name: _problem(name) for name in IMPLEMENTATIONS}
    in_force, origin = _in_force(args.backend)
    findings = {name: "works" if problem is None else f"cannot run: {problem}" for name, problem in problems.items()}
    sections = {
        "Backends": [*findings.items(), ("in force", f"{in_force} ({origin})")],
        "CPU": _cpu(problems["numba"]),
        "GPU": _gpu(problems["cupy"]),
        "Cache": _caches(problems["numba"]),
        "Versions": _versions(),
    }
    for title, rows in sections.items():
        print(title)
        print("".join(f"  {label:<13}  {value}\n" for label, value in rows))
    return 0 if problems.get(in_force, "unknown name") is None else 1


def _in_force(option: str | None) -> tuple[str, str]:
    """The backend that a call with arrays in host memory gets, and what decided it (and what is wrong with it)."""
    name = option or kernels.get_backend()
    origin = "--backend" if option else "BERTCORE_BACKEND" if os.environ.get("BERTCORE_BACKEND") else "the default"
    if name == AUTO:
        return "numba", f"{origin}, for arrays in host memory"
    if name not in IMPLEMENTATIONS:
        return name, f"{origin}; unknown name, known are {', '.join([AUTO, *IMPLEMENTATIONS])}"
    return name, origin


def _problem(backend: str) -> str | None:
    """Why `backend` cannot run here, or None after it ran."""
    reason = kernels.unavailable_reason(backend)
    if reason is not None:
        return reason
    try:
        with kernels.use_backend(backend):
            zeros = kernels.to_backend(np.zeros((2, 4), np.float32))
            result = kernels.softmax(zeros, -1)
            if backend == "cupy":
                kernels.linear(zeros, zeros)  # by a library that CuPy's wheel does not have
                result = result.get()
    except Exception as error:  # whatever it is, it is the finding
        return f"{type(error).__name__}: {error}"
    return None if np.allclose(result, 0.25) else f"softmax of zeros is {result.tolist()}, expected 0.25"


def _numba_machinery() -> ModuleType:
    from bertcore.kernels import _numba

    return _numba


def _cpu(numba_problem: str | None) -> Rows:
    rows = [("model", cpu_model())]
    if numba_problem is not None:
        return [*rows, ("threads", f"unknown without numba; {os.cpu_count()} CPUs")]
    machinery = _numba_machinery()
    threads = machinery.thread_count()
    features = [name for name, found in machinery.host_features().items() if found]
    features += [name for name in _tiles() if name not in features]
    return [
        *rows,
        ("features", " ".join(features) or "none of those that matter here"),
        ("compiled for", f"{machinery.LEVEL.name}, vectors of {machinery.LEVEL.vector_bytes} bytes"),
        *_amx(machinery, features),
        ("threads", f"{threads.count}, by {threads.source}; pool {machinery.THREADING_LAYER}"),
    ]


def _tiles() -> list[str]:
    """What the CPU has of AMX, by Linux's account."""
    flags = cpu_info("flags").split()
    return [name for name in AMX if name.replace("-", "_") in flags]


def _amx(machinery: ModuleType, features: list[str]) -> Rows:
    """Return a row that says whether a CPU's AMX is used, and why; no row without AMX."""
    if not set(AMX) <= set(features):
        return []
    isa, is_used = machinery.isa, machinery.LEVEL.tiles == machinery.isa.NATIVE
    if setting("ISA"):
        reason = f"{variable('ISA')}={setting('ISA')}"
    elif is_used:
        reason = "the CPU and Linux offer it"
    else:
        level = next(level for level in isa.LEVELS if level.tiles == isa.NATIVE)
        reason = isa.why_not(level) or "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set"
    return [("AMX", f"{'used' if is_used else 'not used'}: {reason}")]


def _gpu(cupy_problem: str | None) -> Rows:
    if cupy_problem is not None:
        return [("devices", _nvidia_smi())]
    import cupy

    runtime = cupy.cuda.runtime
    devices = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
    rows = [
        (f"device {index}", f"{d['name'].decode()}, sm_{d['major']}{d['minor']}, {d['totalGlobalMem'] / 2**30:.0f} GiB")
        for index, d in enumerate(devices)
    ]
    return [*rows, ("CUDA", f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")]


def _nvidia_smi() -> str:
    """What the driver's own tool sees, for a machine whose GPU waits for CuPy to be installed."""
    if shutil.which("nvidia-smi") is None:
        return "none found (there is no nvidia-smi, so no NVIDIA driver)"
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split("\n")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    return "; ".join(filter(None, found)) or "none found by nvidia-smi"


def _caches(numba_problem: str | None) -> Rows:
    from bertcore.kernels.cache_folder import writable_cache_folder

    rows = [("models", _folder(writable_cache_folder))]
    if numba_problem is None:
        rows.insert(0, ("kernels", _folder(_numba_machinery().cache_folder)))
    return rows


def _folder(find: Callable[[], Path]) -> str:
    try:
        return str(find())
    except OSError as error:
        return str(error)


def _versions() -> Rows:
    rows = [("bertcore", bertcore.__version__), ("Python", f"{platform.python_version()} on {platform.platform()}")]
    found = {_canonical(dist.name): dist.version for dist in importlib.metadata.distributions() if dist.name}
    cupy = sorted(name for name in found if name.startswith("cupy"))
    return rows + [(name, found[name]) for name in [*PACKAGES, *cupy] if name in found]


def _canonical(name: str) -> str:
    return name.lower().replace("-", "_")
