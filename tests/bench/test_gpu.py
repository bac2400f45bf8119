"""bench.gpu: the command runs from a copied folder on a bare machine, and reports wrong results."""

import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import cupy
import numpy as np
import pytest

from bench.gpu import __main__ as command
from bench.gpu import checks, operations, timings, worker
from bench.gpu.__main__ import SHARES, main
from bench.gpu.timings import by_graph
from bench.gpu.worker import rows_of
from bench.report import read_csv
from bertcore import kernels
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.softmax import cuda as softmax_cuda
from tests.bench.gpu_worker import TorchOnCPU
from tests.cuda_emulator.driverless import driverless, host, unavailable_reason

ROOT = Path(__file__).parents[2]
BARE = """
import sys
sys.modules.update(dict.fromkeys(("numba", "tbb", "pytest", "hypothesis", "safetensors", "tokenizers", "torch")))
"""
BARE_COMMAND = f"""{BARE}
from bench.gpu.__main__ import main
assert main([]) == 2  # no GPU
worker = {BARE!r} + "from tests.bench.gpu_worker import main; main(sys.argv)"
sys.exit(main(["--quick", "--minutes", "60", "--csv", sys.argv[1]], ["-c", worker]))
"""
# One step ends the process, one never ends, and one leaves a GPU that answers with errors.
HOSTILE = """
import json, os, sys, time
def say(**message): print(json.dumps(message), flush=True)
names = "right", "ends", "right", "waits", "breaks", "right"
say(machine=dict(gpu="none"), steps=[["kernel", name, "", False] for name in names])
for line in sys.stdin:
    name = names[int(line)]
    if name == "ends": os.kill(os.getpid(), 11)
    if name == "waits": time.sleep(600)
    say(row=dict(note=os.getpid()))
    say(is_usable=name != "breaks")
"""

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


@pytest.fixture
def csv(tmp_path):
    return tmp_path / "gpu.csv"


def hostile(csv, *arguments):
    return main(["--csv", str(csv), *arguments], ["-c", HOSTILE])


@pytest.mark.slow  # two minutes: every kernel and every model
def test_the_command_runs_from_a_copied_folder(csv, tmp_path):
    (ROOT / "build").mkdir(exist_ok=True)  # absent in a fresh clone
    for name in ("bench", "tests", "build", "kernels", "bertcore"):
        (tmp_path / name).symlink_to(ROOT / name)
    run = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", BARE_COMMAND, str(csv)], **run, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no NVIDIA GPU is visible" in done.stderr
    rows = read_csv(csv)
    assert {row["status"] for row in rows} == {"ok"}
    named = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in SHARES}
    assert named["kernel"] == {"compile", *checks.on_disk("cupy"), checks.BATCH_INVARIANT}
    assert named["family"] > set(checks.runnable()) and named["attention"] == {"plain 7", "bias 7", "relative 7"}
    assert all(float(row["median_s"]) > 0 for row in rows if row["kind"] not in ("kernel", "family"))
    assert {row["against"] for row in rows} == {"", "copy", "1 ms", "batch-invariant"}
    assert all(name in done.stdout for names in named.values() for name in names)


@pytest.mark.slow
@pytest.mark.parity
def test_everything_is_compared_with_pytorch(csv):
    pytest.importorskip("transformers")
    worker = ["-m", "tests.bench.gpu_worker", "--timings", "--peer"]
    assert main(["--quick", "--minutes", "60", "--csv", str(csv)], worker) == 0
    rows = read_csv(csv)
    by_graph = {("rows", "copy"), ("rows", "torch.compile"), ("products", "batch-invariant"), ("products", "torch")}
    by_graph |= {("attention", name) for name in ("", "FlashAttention-2", "SDPA with attn_mask", "eager")}
    by_events = {("model", name) for name in ("", "transformers, SDPA, torch.compile", "1 ms")}
    by_events |= {("training", name) for name in ("", "transformers, torch.compile, fused AdamW")}
    found = {(row["kind"], row["against"]): row["method"] for row in rows[1:]}
    assert found == dict.fromkeys(by_graph, "graph") | dict.fromkeys(by_events, "events")
    assert all(row["status"] == "ok" and float(row["median_s"]) > 0 for row in rows[1:])
    goals = {row["against"]: row["goal"] for row in rows}
    assert (goals["copy"], goals["1 ms"], goals["SDPA with attn_mask"]) == ("0.9", "1.0", "2.0")


def test_a_lost_process_costs_one_step(monkeypatch, csv, capsys):
    monkeypatch.setattr(command, "ends", lambda kinds: {("kernel", False): 99.0})
    monkeypatch.setattr(command, "GRACE", 99.0)  # a busy machine takes long to start a process
    assert hostile(csv, "--minutes", "0.2") == 1
    rows = read_csv(csv)
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "failed", "ok", "ok"]
    first, ended, second, waited, third, fourth = (row["note"] for row in rows)
    assert (ended, waited) == ("the process that has the GPU ended with status -11", "no answer in time")
    assert len({first, second, third, fourth}) == 4, "each of them in a process of its own"
    whole, bad = capsys.readouterr().out.split("2 of 6 rows are wrong or failed:")
    assert ended in whole
    assert [line.split()[1] for line in bad.splitlines() if line.startswith("kernel")] == ["ends", "waits"]


def test_the_command_ends_at_once_without_an_answer_or_a_csv(monkeypatch, csv, tmp_path, capsys):
    csv.write_text("name,median\n")
    for path, reason in ((csv, "has the columns name, median"), (tmp_path, "Is a directory")):
        assert hostile(path) == 2 and reason in capsys.readouterr().err
    monkeypatch.setattr(command, "READY_SECONDS", 0.1)
    assert main(["--csv", str(csv)], ["-c", "import time; time.sleep(60)"]) == 2
    assert "no answer in time" in capsys.readouterr().err


def test_a_gpu_that_answers_with_errors_is_given_up(monkeypatch, capsys):
    with driverless(emulated=False):
        assert worker.is_usable(None)
        monkeypatch.setattr(cupy.cuda.runtime, "deviceSynchronize", lambda: 1 / 0)
        assert not worker.is_usable(None)
    assert "the GPU is given up: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parity
def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    with driverless():
        step = next(it for it in operations.row_steps(timings.tiny(), TorchOnCPU()) if it.name.startswith("softmax"))
        (row,) = rows_of(step)
    assert row["status"] == "failed" and "median_s" not in row
    assert "ours is off from the other's result by" in row["note"]


def test_a_graph_uses_the_memory_of_its_first_run():
    with driverless():
        x = cupy.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
        timed = by_graph([lambda: kernels.softmax(x)] * 2)
        assert timed.method == "graph"
        outputs = timed.variant.call.uses[1]
        host(x)[...] = 0
        timed.variant.call()
        np.testing.assert_allclose([host(output) for output in outputs], 1 / 3, rtol=1e-6)


def checked(every, families, *names):
    """The rows of the checks of these names."""
    with driverless() as gpu:
        gpu.launches = deque(maxlen=0)  # a longer one would keep their arguments alive
        steps = [step for step in checks.steps(every, families) if step.name in names]
        return {(step.name, step.dtype): row for step in steps for row in step.run()}


@pytest.mark.slow  # a quarter of a minute: a model in every dtype
def test_wrong_kernels_are_reported(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    monkeypatch.setattr(layer_norm_cuda, "layer_norm", lambda input, weight, bias, eps, residual: 2 * input)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax"])
    rows = checked(5, ["bert-base-uncased"], "softmax", "bert-base-uncased")
    assert "wrong; operation by operation: off by" in rows["bert-base-uncased", "float32"]["note"]
    assert "wrong; (1,) along 0, contiguous: AssertionError: " in rows["softmax", "float16"]["note"]


def test_a_failing_kernel_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: 1 / 0)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax", "gelu"])
    rows = checked(20, [], "softmax", "gelu")
    assert "ZeroDivisionError" in rows["softmax", "float16"]["note"] and "note" not in rows["gelu", "float16"]
