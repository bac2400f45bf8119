"""bench.gpu: the command runs from a copied folder on a bare machine, and reports what is wrong."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import checks
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.softmax import cuda as softmax_cuda
from tests.cuda_emulator.driverless import driverless, unavailable_reason

ROOT = Path(__file__).parents[2]
BARE = """
import sys
sys.modules.update(dict.fromkeys(("numba", "tbb", "pytest", "hypothesis", "safetensors", "tokenizers", "torch")))
from bench.gpu.__main__ import main
from tests.cuda_emulator.driverless import driverless
assert main([]) == 2  # no GPU
with driverless():
    sys.exit(main(["--quick", "--csv", sys.argv[1]]))
"""

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


@pytest.fixture
def copied_folder(tmp_path):
    """What someone copies to a machine with a GPU: kernels/ is in its place in bertcore/. (Links; built files stay.)"""
    (ROOT / "build").mkdir(exist_ok=True)  # nothing was built yet in a fresh clone
    for name in ("bench", "tests", "build"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bertcore").mkdir()
    for part in (*(ROOT / "bertcore").iterdir(), ROOT / "kernels"):
        (tmp_path / "bertcore" / part.name).symlink_to(part)
    return tmp_path


@pytest.mark.slow  # three quarters of a minute: every kernel and every model
def test_the_command_runs_from_a_copied_folder(copied_folder, tmp_path):
    path = tmp_path / "results.csv"
    environment = os.environ | {"PYTHONPATH": str(copied_folder)}
    command = [sys.executable, "-c", BARE, str(path)]
    done = subprocess.run(command, cwd=copied_folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no NVIDIA GPU is visible" in done.stderr
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} == {"ok"}
    named = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in ("kernel", "model", "timing")}
    assert named["kernel"] == set(checks.on_disk("cupy"))
    assert named["model"] == set(checks.runnable())
    assert "BERT-base 2x3" in named["timing"]
    assert all(float(row["median_s"]) > 0 for row in rows if row["kind"] == "timing")
    assert all(name in done.stdout for names in named.values() for name in names)


@pytest.mark.slow  # a quarter of a minute: a model in every dtype
def test_wrong_kernels_are_reported(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    monkeypatch.setattr(layer_norm_cuda, "layer_norm", lambda input, weight, bias, eps, residual: 2 * input)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax"])
    with driverless():
        kernel, *_ = checks.kernel_checks(every=5)
        (model,) = checks.model_checks(["bert-base-uncased"])
    assert "wrong; (1,) along 0, contiguous: AssertionError: " in kernel.note
    assert "off by" in model.note


def test_a_kernel_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: 1 / 0)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax", "gelu"])
    with driverless():
        notes = {(check.name, check.dtype): check.note for check in checks.kernel_checks(every=20)}
    assert "ZeroDivisionError" in notes["softmax", "float16"]
    assert notes["gelu", "float16"] == ""
