"""bench.gpu: the command runs from a copied folder on a bare machine, and reports what is wrong."""

import csv
import os
import subprocess
import sys
from collections import deque
from contextlib import nullcontext
from pathlib import Path

import cupy
import numpy as np
import pytest

from bench.gpu import checks, models, peers, sizes
from bench.gpu.__main__ import ENDS, main
from bench.gpu.clock import by_graph
from bench.measure import host_clock
from bertcore import kernels
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.softmax import cuda as softmax_cuda
from tests.cuda_emulator.driverless import driverless, host, unavailable_reason

ROOT = Path(__file__).parents[2]
BARE = """
import sys
from collections import deque
sys.modules.update(dict.fromkeys(("numba", "tbb", "pytest", "hypothesis", "safetensors", "tokenizers", "torch")))
from bench.gpu.__main__ import main
from tests.cuda_emulator.driverless import driverless
assert main([]) == 2  # no GPU
with driverless() as gpu:
    gpu.launches = deque(maxlen=0)
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
    named = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in ENDS}
    assert named["kernel"] == {*checks.on_disk("cupy"), checks.BATCH_INVARIANT}
    assert named["family"] == set(checks.runnable())
    assert {"plain 7", "bias 7", "relative 7"} == named["attention"]
    assert all(float(row["median_s"]) > 0 for row in rows if row["kind"] not in ("kernel", "family"))
    assert {row["against"] for row in rows} == {"", "copy", "1 ms", "batch-invariant"}
    assert all(name in done.stdout for names in named.values() for name in names)


class TorchOnCPU(peers.Torch):
    """PyTorch without a GPU, over the memory of the host that stands for a GPU's."""

    device = "cpu"

    def tensor(self, array):
        return super().tensor(host(array))

    def compiled(self, function):
        return function

    def flash_attention(self):
        return nullcontext()

    def by_graph(self, calls):
        return self.by_events(calls)

    def clock(self, call, repeats):
        return host_clock(call, repeats)

    def free(self):
        pass


@pytest.fixture
def timings_alone(monkeypatch):
    monkeypatch.setattr(checks, "steps", lambda every: [])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parity
def test_everything_is_compared_with_pytorch(timings_alone, tmp_path):
    pytest.importorskip("transformers")
    with driverless() as gpu:
        gpu.launches = deque(maxlen=0)  # which would keep their arguments alive
        assert main(["--quick", "--csv", str(tmp_path / "gpu.csv")], TorchOnCPU()) == 0
    rows = read(tmp_path / "gpu.csv")
    found = {(row["kind"], row["against"]): row for row in rows}
    assert set(found) == {
        ("rows", "copy"),
        ("rows", "torch.compile"),
        ("products", "batch-invariant"),
        ("products", "torch"),
        ("attention", "FlashAttention-2"),
        ("attention", "SDPA with attn_mask"),
        ("attention", "eager"),
        ("model", "transformers, SDPA, torch.compile"),
        ("model", "1 ms"),
        ("training", "transformers, torch.compile, fused AdamW"),
    }
    for row in rows:
        assert row["status"] == "ok" and float(row["ratio"]) > 0
        assert row["method"] == ("graph" if row["kind"] in ("rows", "products", "attention") else "events"), row
        speed = float(row["against_s"]) / float(row["median_s"])
        assert float(row["ratio"]) == pytest.approx(speed, rel=9), "medians of ratios, and of times"
    goals = {row["against"]: row["goal"] for row in rows}
    assert (goals["copy"], goals["1 ms"], goals["SDPA with attn_mask"]) == ("0.9", "1.0", "2.0")


def test_models_are_timed_without_transformers(monkeypatch):
    monkeypatch.setattr(TorchOnCPU, "__init__", lambda self: None)
    monkeypatch.setattr(TorchOnCPU, "has_transformers", lambda self: False)
    with driverless(emulated=False) as gpu:
        gpu.launches = deque(maxlen=0)
        *_, one_text, _, _ = models.steps(sizes.tiny(), TorchOnCPU())
        rows = list(one_text.run())
    assert [row.get("against") for row in rows] == [None, "1 ms"]


@pytest.mark.parity
def test_a_wrong_result_is_not_timed(timings_alone, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "steps", lambda *_: [])
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    with driverless():
        assert main(["--quick", "--csv", str(tmp_path / "gpu.csv")], TorchOnCPU()) == 1
    rows = [row for row in read(tmp_path / "gpu.csv") if row["name"].startswith("softmax")]
    assert {(row["status"], row["median_s"]) for row in rows} == {("failed", "")}
    assert "ours is off from the other's result by" in rows[0]["note"]


def test_what_there_is_no_time_for_is_reported(tmp_path, capsys):
    with driverless(emulated=False):
        assert main(["--quick", "--minutes", "0", "--csv", str(tmp_path / "gpu.csv")]) == 0
    assert {row["status"] for row in read(tmp_path / "gpu.csv")} == {"not run"}
    assert "attention bias 7 float16: not run" in capsys.readouterr().err


def test_what_cannot_be_captured_is_timed_by_events():
    with driverless(emulated=False):
        seen = []
        timed = by_graph([lambda: seen.append(1), lambda: cupy.asarray(np.ones(3))])
        assert (timed.method.partition(":")[0], timed.calls) == ("events; no graph", 2)
        seen.clear()
        timed.variant.call()
    assert seen == [1]


def test_a_graph_uses_the_memory_of_its_first_run():
    with driverless():
        x = cupy.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
        timed = by_graph([lambda: kernels.softmax(x)] * 2)
        assert timed.method == "graph"
        outputs = timed.variant.call.uses[1]
        host(x)[...] = 0
        timed.variant.call()
        np.testing.assert_allclose([host(output) for output in outputs], 1 / 3, rtol=1e-6)


@pytest.mark.slow  # a quarter of a minute: a model in every dtype
def test_wrong_kernels_are_reported(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    monkeypatch.setattr(layer_norm_cuda, "layer_norm", lambda input, weight, bias, eps, residual: 2 * input)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax"])
    with driverless():
        steps = [
            step for step in checks.steps(5, ["bert-base-uncased"]) if step.name in ("softmax", "bert-base-uncased")
        ]
        kernel, _, _, model = [row for step in steps for row in step.run()]
    assert "wrong; (1,) along 0, contiguous: AssertionError: " in kernel["note"]
    assert "off by" in model["note"]


def test_a_kernel_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: 1 / 0)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax", "gelu"])
    with driverless():
        steps = [step for step in checks.steps(20, []) if step.kind == "kernel"]
        rows = {(step.name, step.dtype): row for step in steps for row in step.run()}
    assert "ZeroDivisionError" in rows["softmax", "float16"]["note"]
    assert "note" not in rows["gelu", "float16"]
