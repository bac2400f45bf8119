"""bertcore doctor, demo and warmup: what can run here."""

import platform
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from cuda import pathfinder

from bertcore import AutoModelForSequenceClassification, __version__, kernels, use_backend
from bertcore.cli import doctor, main
from bertcore.cli.doctor import process_age
from bertcore.demo_model import DemoModelError
from bertcore.kernels import _numba
from bertcore.kernels.dispatch import IMPLEMENTATIONS
from bertcore.tasks import loading as warmup
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.demo import demo_folder  # noqa: F401 (a fixture)
from tests.processes import run_python
from tests.tiny_families import tiny_config

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
    shown = dict(doctor.cpu_rows(None))["features"].split()
    assert [name for name in shown if name.startswith("amx")] == ([] if source == "neither" else names)


def test_unavailable_backend_is_exit_code_1(without_cupy, capsys):
    assert main(["doctor", "--backend", "cupy"]) == 1
    assert line(capsys.readouterr().out, "in force") == "cupy (--backend)"
    assert main(["doctor", "--backend", "numpy"]) == 0


@pytest.mark.parametrize("name", ["tpu", "NUMPY"])
def test_an_unknown_backend_in_the_environment(without_cupy, monkeypatch, capsys, name):
    monkeypatch.setenv("BERTCORE_BACKEND", name)
    monkeypatch.setattr("bertcore.kernels.get_backend", lambda: name)
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
    assert "expected 0.25" in doctor.backend_problem("numpy")

    def broken(input, dim):
        raise OSError("a library is missing")

    monkeypatch.setattr(kernels, "softmax", broken)
    assert doctor.backend_problem("numpy") == "OSError: a library is missing"


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_a_gpu_without_cublaslt(monkeypatch):
    with driverless():
        assert doctor.backend_problem("cupy") is None

    def missing(name):
        raise pathfinder.DynamicLibNotFoundError(name)

    with driverless() as gpu:  # anew: a product that was computed once is not planned again
        del gpu.runtime.cublaslt_path
        monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
        assert "multiplies by cuBLASLt, which is not installed" in doctor.backend_problem("cupy")


def test_gpu_without_cupy(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor.gpu_rows("no cupy") == [("devices", "NVIDIA H200, 580.1")]
    monkeypatch.setenv("PATH", "")
    assert "none found" in doctor.gpu_rows("no cupy")[0][1]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The throughput is measured on a few texts, once."""
    monkeypatch.setattr(doctor, "BENCHMARK_TEXTS", 6)
    monkeypatch.setattr(doctor, "BENCHMARK_SECONDS", 0.0)


@pytest.mark.parametrize("backend", [pytest.param("numpy", marks=pytest.mark.slow), "numba"])
def test_demo(demo_folder, backend, capsys):  # noqa: F811
    assert main(["demo", "--backend", backend]) == 0
    shown = capsys.readouterr().out
    rows = [line.split()[1:7] for line in shown.splitlines() if re.match(r"  [1-6] ", line)]
    matrix = np.array(rows, float)
    np.testing.assert_allclose(np.diag(matrix), 1)
    np.testing.assert_array_equal(matrix, matrix.T)
    for left, right in ((0, 1), (2, 3), (4, 5)):  # the sentences come in pairs that mean the same
        assert matrix[left, right] == np.sort(matrix[left])[-2] > 0.4
    assert re.search(rf"^backend +{backend}", shown, re.MULTILINE)
    assert ("imports and loading" in shown) if backend == "numpy" else ("compil" in shown)
    assert float(re.search(r"first embedding +([\d.]+) s", shown)[1]) > 0
    assert float(re.search(r"throughput +([\d,]+) texts", shown)[1].replace(",", "")) > 0


def test_the_download_is_not_counted(demo_folder, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr("bertcore.demo_model.demo_model_folder", lambda: time.sleep(0.3) or demo_folder)
    monkeypatch.setattr(doctor, "process_age", lambda: 99.0)
    assert main(["demo", "--backend", "numpy"]) == 0
    assert 60 < float(re.search(r"first embedding +([\d.]+) s", capsys.readouterr().out)[1]) <= 98.7


def test_without_the_model(monkeypatch, capsys):
    def missing():
        raise DemoModelError("no network here.\nGet it elsewhere.")

    monkeypatch.setattr("bertcore.demo_model.demo_model_folder", missing)
    assert main(["demo", "--backend", "numpy"]) == 1
    assert capsys.readouterr().err == "bertcore demo: no network here. Get it elsewhere.\n"


def test_process_age_counts_from_the_start():
    start = time.perf_counter()
    code = "import time; time.sleep(0.5); from bertcore.cli.doctor import process_age; print(process_age())"
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout)
    if sys.platform == "linux":
        assert 0.48 < age < time.perf_counter() - start + 0.05
    assert 0 < process_age() <= process_age()


WARMUP = "import sys; from bertcore.cli import main; sys.exit(main(['warmup', *sys.argv[1:]]))"

# Runs a model as its users do, and prints the names of what Numba compiles meanwhile.
USE = """
import sys
import numpy as np
from numba.core import event
from bertcore import AutoModel, AutoModelForMaskedLM, SentenceEncoder, value_and_grad

class Names(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass

event.register("numba:compile", Names())
folder, dtype, *gradients = sys.argv[1:]
SentenceEncoder(folder, dtype=dtype).encode(["a cat", "", "the cat sat on an other mat"], batch_tokens=8)
model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
ids = np.random.default_rng(0).integers(1, 60, (5, 13))
for batch in (ids, ids[:, :1], ids[:1], np.asfortranarray(ids), ids.astype(np.int32), ids.tolist(), ids[:0]):
    model(batch)
    model(batch, token_type_ids=np.zeros_like(batch), attention_mask=np.ones_like(batch))
ids.flags.writeable = False
model(ids, attention_mask=np.tri(5, 13, dtype=int), output_attentions=True, output_hidden_states=True)
AutoModel.from_config(model.config, dtype=dtype)(ids)
if gradients:
    value_and_grad(model)(ids, labels=ids)
"""


def warm_up(*arguments, **variables):
    """(the number of kernels, the folder) that a run tells."""
    out = run_python(WARMUP, *arguments, timeout=300, **variables)[0]
    found = re.fullmatch(r"compiled  (\d+) kernels in [\d.]+ s( \(they were there already\))?\ncache     (.+)", out)
    assert found, out
    assert (found[1] == "0") == bool(found[2])
    return int(found[1]), found[3]


@pytest.mark.slow
def test_an_empty_cache(masked_lm_folder, tmp_path):
    cache = {"BERTCORE_CACHE_DIR": str(tmp_path)}
    count, folder = warm_up(**cache)  # the random BERT serves the folder's, too
    assert count > 4 and folder.startswith(str(tmp_path))
    assert run_python(USE, str(masked_lm_folder), "float32", **cache) == ("", "")
    assert warm_up(str(masked_lm_folder), **cache) == (0, folder)


PER_PRECISION = [pytest.param([dtype], marks=pytest.mark.slow) for dtype in ("bfloat16", "int8")]  # compile 20 s each


@pytest.mark.parametrize("arguments", [["float32", "--gradients"], *PER_PRECISION], ids=" ".join)
def test_other_kernels(masked_lm_folder, arguments):
    dtype, *gradients = arguments
    warm_up(str(masked_lm_folder), "--dtype", *arguments)
    assert run_python(USE, str(masked_lm_folder), dtype, *gradients) == ("", "")


def test_a_family_without_a_classifier_of_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "LONGEST", 16)
    config = tiny_config("transfo-xl-wt103") | {"problem_type": "multi_label_classification"}
    with use_backend("numpy"):
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
        _, with_head = warmup.models_of(tmp_path, None)
        warmup.warm_up(with_head, gradients=True)
