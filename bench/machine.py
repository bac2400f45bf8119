"""Machine, threads and versions of a measurement; the one place that sets the number of threads."""

import importlib
import importlib.util
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

import bertcore
from bertcore import kernels

COLUMNS = (
    "date", "commit", "system", "cpu", "cores", "threads", "threads_from", "isa", "gpu",
    "python", "bertcore", "numpy", "blas", "numba", "cupy", "torch",
)  # fmt: skip


def describe() -> dict[str, str | int]:
    """Return the machine and the versions, under the names of COLUMNS; "" if absent."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        **_cpu_kernels(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "bertcore": bertcore.__version__,
        "numpy": np.__version__,
        "blas": _blas(),
        **{name: version(name) for name in ("numba", "cupy", "torch")},
    }


def set_threads(count: int | None) -> None:
    """Give our kernels and NumPy's BLAS the same number of threads: `count`, or the kernels' own choice.

    Raises RuntimeError if a count is given and threadpoolctl, which sets the BLAS's threads, is not installed.
    """
    from bertcore.kernels import _numba

    if count is not None:
        _numba.set_num_threads(count)
    if importlib.util.find_spec("threadpoolctl") is not None:
        importlib.import_module("threadpoolctl").threadpool_limits(_numba.num_threads(), user_api="blas")
    elif count is not None:
        raise RuntimeError(
            "the number of threads of NumPy's BLAS is set through threadpoolctl: pip install threadpoolctl"
        )


def fma_limit(threads: int) -> float:
    """Return float32 FLOP per second of threads that only compute fused multiply-adds (bench/fma.py)."""
    return importlib.import_module("bench.fma").fma_limit(threads)


def _cpu_kernels() -> dict[str, str | int]:
    """Return threads and instruction set of our kernels on the CPU; "" without Numba."""
    if kernels.unavailable_reason("numba"):
        return dict.fromkeys(("threads", "threads_from", "isa"), "")
    from bertcore.kernels import _numba

    threads = _numba.thread_count()
    return {"threads": threads.count, "threads_from": threads.source, "isa": _numba.LEVEL.name}


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or not a repository
        return ""
    return found.stdout.strip()


def _cpu() -> str:
    """Return the CPU's name; on x86 with family and model, since virtual machines may shorten the name."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in found:
        return platform.processor() or platform.machine()
    return f"{found['model name']} (family {found.get('cpu family', '?')} model {found.get('model', '?')})"


def _gpu() -> str:
    if kernels.unavailable_reason("cupy"):
        return ""
    cupy = importlib.import_module("cupy")
    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode()


def _blas() -> str:
    """Return the library behind NumPy's matrix products, its name for this CPU, and its threads."""
    if importlib.util.find_spec("threadpoolctl") is None:
        built_with = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{built_with['name']} {built_with['version']}"
    pools = [pool for pool in importlib.import_module("threadpoolctl").threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        return ""
    pool = max(pools, key=lambda pool: "numpy" in pool["filepath"])  # SciPy may have loaded another
    return f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')} x{pool['num_threads']}"


def version(distribution: str) -> str:
    """Return the installed version, or ""; CuPy's distributions are named by CUDA version."""
    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy") if distribution == "cupy" else (distribution,)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
