"""bertcore doctor: what can run here."""

import platform
import re

import numpy as np
import pytest
from cuda import pathfinder

from bertcore import __version__, kernels
from bertcore.cli import doctor, main
from bertcore.kernels.dispatch import IMPLEMENTATIONS
from tests.cuda_emulator.driverless import driverless, unavailable_reason

CUPY_MISSING = "CuPy is not installed: pip install somewhere"


@pytest.fixture
def without_cupy(monkeypatch):
    reason = kernels.unavailable_reason
    monkeypatch.setattr(kernels, "unavailable_reason", lambda name: CUPY_MISSING if name == "cupy" else reason(name))


def line(shown, label):
    return re.search(rf"^  {label} +(.*)$", shown, re.MULTILINE)[1]


def test_report(without_cupy, monkeypatch, capsys):
    monkeypatch.delenv("BERTCORE_BACKEND", raising=False)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert line(shown, "numpy") == line(shown, "numba") == "works"
    assert line(shown, "cupy") == f"cannot run: {CUPY_MISSING}"
    assert line(shown, "in force").startswith("numba (the default")
    assert re.match(r"\d+, by .+; pool (tbb|omp|workqueue)$", line(shown, "threads"))
    assert line(shown, "bertcore") == __version__
    assert line(shown, "Python").startswith(platform.python_version())
    for title in ("Backends", "CPU", "GPU", "Cache", "Versions"):
        assert f"{title}\n" in shown
    from bertcore.kernels import _numba
    from bertcore.kernels._numba.compile import shipped

    assert line(shown, "kernels") == str(_numba.cache_folder())
    assert line(shown, "then shipped") == shipped.summary()
    assert line(shown, "compiled for").startswith(_numba.LEVEL.name)


@pytest.mark.parametrize("source", ["llvm", "linux", "neither"])
def test_amx_is_listed(monkeypatch, source):
    from llvmlite import binding

    names = ["amx-tile", "amx-int8", "amx-bf16"]
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: dict.fromkeys(names, source == "llvm"))
    flags = "fpu amx_bf16 avx512f amx_tile amx_int8" if source == "linux" else "fpu"
    monkeypatch.setattr(doctor, "cpu_info", lambda key: flags if key == "flags" else "a CPU")
    shown = dict(doctor._cpu(None))["features"].split()
    assert [name for name in shown if name.startswith("amx")] == ([] if source == "neither" else names)


def test_unavailable_backend_is_exit_code_1(without_cupy, capsys):
    assert main(["doctor", "--backend", "cupy"]) == 1
    assert line(capsys.readouterr().out, "in force") == "cupy (--backend)"
    assert main(["doctor", "--backend", "numpy"]) == 0


@pytest.mark.parametrize("name", ["tpu", "NUMPY"])
def test_an_unknown_backend_in_the_environment(without_cupy, monkeypatch, capsys, name):
    monkeypatch.setenv("BERTCORE_BACKEND", name)
    monkeypatch.setattr("bertcore.kernels.dispatch._process_backend", name)
    assert main(["doctor"]) == 1
    known = "auto, " + ", ".join(IMPLEMENTATIONS)
    assert line(capsys.readouterr().out, "in force") == f"{name} (BERTCORE_BACKEND; unknown name, known are {known})"


def test_without_numba_the_rest_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "unavailable_reason", lambda name: None if name == "numpy" else f"no {name}")
    assert main(["doctor", "--backend", "numpy"]) == 0
    shown = capsys.readouterr().out
    assert line(shown, "numba") == "cannot run: no numba"
    assert "unknown without numba" in line(shown, "threads")


def test_backends_are_tried_and_not_only_imported(monkeypatch):
    monkeypatch.setattr(kernels, "softmax", lambda input, dim: np.full((2, 4), 0.3))
    assert "expected 0.25" in doctor._problem("numpy")

    def broken(input, dim):
        raise OSError("a library is missing")

    monkeypatch.setattr(kernels, "softmax", broken)
    assert doctor._problem("numpy") == "OSError: a library is missing"


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_a_gpu_without_cublaslt(monkeypatch):
    with driverless():
        assert doctor._problem("cupy") is None

    def missing(name):
        raise pathfinder.DynamicLibNotFoundError(name)

    with driverless() as gpu:  # anew: a product that was computed once is not planned again
        gpu.runtime._cublaslt_path = None
        monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
        assert "multiplies by cuBLASLt, which is not installed" in doctor._problem("cupy")


def test_gpu_without_cupy(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor._gpu("no cupy") == [("devices", "NVIDIA H200, 580.1")]
    monkeypatch.setenv("PATH", "")
    assert "none found" in doctor._gpu("no cupy")[0][1]
