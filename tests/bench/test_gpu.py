"""bench.gpu: the command runs from a copied folder on a bare machine, and reports what is wrong."""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import cupy
import numpy as np
import pytest

from bench.gpu import __main__ as command
from bench.gpu import checks, models, operations, timings, worker
from bench.gpu.__main__ import SHARES, ends, main
from bench.gpu.timings import Step, by_graph
from bench.gpu.worker import rows_of
from bench.report import read_csv
from bertcore import kernels
from bertcore.execution.graph_cache import TrainingPass, Workspace
from bertcore.families.luke import adapter as luke_adapter
from bertcore.families.transfo_xl.adapter import CausalRecurrentAdapter
from bertcore.families.xlnet.adapter import TwoStreamAdapter
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.softmax import cuda as softmax_cuda
from tests.bench.gpu_worker import TorchOnCPU
from tests.cuda_emulator.driverless import driverless, host, unavailable_reason
from tests.cuda_emulator.streams import CaptureError, Stream

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
# A worker of steps of which one ends the process, one never ends, and one leaves a GPU that is of no use.
HOSTILE = """
import json, os, sys, time
def say(**message): print(json.dumps(message), flush=True)
names = "right", "ends", "right", "waits", "breaks", "right"
say(machine=dict(gpu="none"), steps=[["kernel", name, "", False] for name in names])
for line in sys.stdin:
    name = names[int(line)]
    if name == "ends": os.kill(os.getpid(), 11)
    if name == "waits": time.sleep(60)
    say(row=dict(note=os.getpid()))
    say(is_usable=name != "breaks")
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


@pytest.mark.slow  # two minutes: every kernel and every model
def test_the_command_runs_from_a_copied_folder(copied_folder, tmp_path):
    path = tmp_path / "results.csv"
    environment = os.environ | {"PYTHONPATH": str(copied_folder)}
    command = [sys.executable, "-c", BARE_COMMAND, str(path)]
    done = subprocess.run(command, cwd=copied_folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no NVIDIA GPU is visible" in done.stderr
    rows = read_csv(path)
    assert {row["status"] for row in rows} == {"ok"}
    named = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in SHARES}
    assert named["kernel"] == {"compile", *checks.on_disk("cupy"), checks.BATCH_INVARIANT}
    assert named["family"] > set(checks.runnable())
    assert {"plain 7", "bias 7", "relative 7"} == named["attention"]
    assert all(float(row["median_s"]) > 0 for row in rows if row["kind"] not in ("kernel", "family"))
    assert {row["against"] for row in rows} == {"", "copy", "1 ms", "batch-invariant"}
    assert all(name in done.stdout for names in named.values() for name in names)


def run(tmp_path, *arguments):
    """(status, rows) of the command with a worker that has no GPU."""
    path, worker = tmp_path / "gpu.csv", ["-m", "tests.bench.gpu_worker", "--timings", *arguments]
    return main(["--quick", "--minutes", "60", "--csv", str(path)], worker), read_csv(path)


@pytest.mark.slow
@pytest.mark.parity
def test_everything_is_compared_with_pytorch(tmp_path):
    pytest.importorskip("transformers")
    status, rows = run(tmp_path, "--peer")
    assert status == 0
    found = {(row["kind"], row["against"]): row for row in rows}
    assert set(found) == {
        ("kernel", ""),
        ("rows", "copy"),
        ("rows", "torch.compile"),
        ("products", "batch-invariant"),
        ("products", "torch"),
        ("attention", ""),
        ("attention", "FlashAttention-2"),
        ("attention", "SDPA with attn_mask"),
        ("attention", "eager"),
        ("model", ""),
        ("model", "transformers, SDPA, torch.compile"),
        ("model", "1 ms"),
        ("training", ""),
        ("training", "transformers, torch.compile, fused AdamW"),
    }
    for row in rows[1:]:
        assert row["status"] == "ok" and float(row["median_s"]) > 0
        assert row["method"] == ("graph" if row["kind"] in ("rows", "products", "attention") else "events"), row
        if row["against"]:
            speed = float(row["against_s"]) / float(row["median_s"])
            assert float(row["ratio"]) == pytest.approx(speed, rel=9), "medians of ratios, and of times"
    goals = {row["against"]: row["goal"] for row in rows}
    assert (goals["copy"], goals["1 ms"], goals["SDPA with attn_mask"]) == ("0.9", "1.0", "2.0")


def test_no_model_is_compared_without_transformers(monkeypatch):
    monkeypatch.setattr(TorchOnCPU, "__init__", lambda self: None)
    monkeypatch.setattr(TorchOnCPU, "has_transformers", lambda self: False)
    assert [*models.steps(timings.tiny(), TorchOnCPU())] == []


def test_a_model_is_timed_alone():
    with driverless(emulated=False) as gpu:
        gpu.launches = deque(maxlen=0)
        *_, one_text, _, _ = models.steps(timings.tiny(), None)
        rows = list(one_text.run())
    assert [row.get("against") for row in rows] == [None, "1 ms"]


@pytest.mark.parity
def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: input.copy())
    with driverless():
        step = next(it for it in operations.row_steps(timings.tiny(), TorchOnCPU()) if it.name.startswith("softmax"))
        (row,) = rows_of(step)
    assert row["status"] == "failed" and "median_s" not in row
    assert "ours is off from the other's result by" in row["note"]


@pytest.mark.parametrize(
    "error, is_beside, status",
    [(RuntimeError, True, "left out"), (RuntimeError, False, "failed"), (AssertionError, True, "failed")],
)
def test_what_a_peer_cannot_do_is_left_out(error, is_beside, status):
    def run():
        raise error("out of\nmemory")
        yield

    assert list(rows_of(Step("rows", "softmax", "float16", run, is_beside))) == [
        {"status": status, "note": f"{error.__name__}: out of memory"}
    ]


def test_a_gpu_that_an_error_broke_is_given_up(monkeypatch, capsys):
    with driverless(emulated=False):
        assert worker._is_usable(None)
        monkeypatch.setattr(cupy.cuda.runtime, "deviceSynchronize", lambda: 1 / 0)
        assert not worker._is_usable(None)
    assert "the GPU is given up: ZeroDivisionError" in capsys.readouterr().err


def test_what_ends_a_process_costs_one_step(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "ends", lambda kinds: {("kernel", False): 99.0})
    monkeypatch.setattr(command, "GRACE", 99.0)  # a machine at work takes long to start a process
    assert main(["--minutes", "0.2", "--csv", str(tmp_path / "gpu.csv")], ["-c", HOSTILE]) == 1
    rows = read_csv(tmp_path / "gpu.csv")
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "failed", "ok", "ok"]
    assert (rows[1]["note"], rows[3]["note"]) == (
        "the process that has the GPU ended with status -11",
        "no answer in time",
    )
    first, _, second, _, third, fourth = (row["note"] for row in rows)
    assert len({first, second, third, fourth}) == 4, "each of them in a process of its own"
    whole, bad = capsys.readouterr().out.split("2 of 6 rows are wrong or failed:")
    assert "ended with status -11" in whole
    assert [line.split()[1] for line in bad.splitlines() if line.startswith("kernel")] == ["ends", "waits"]


def test_parts_are_run_alone(tmp_path):
    path = tmp_path / "gpu.csv"
    for kinds, status, rows in ((["family"], 0, []), (["family", "kernel"], 3, ["not run"] * 6)):
        assert main(["--minutes", "0", "--csv", str(path), "--kinds", *kinds], ["-c", HOSTILE]) == status
        assert [row["status"] for row in read_csv(path)] == rows


def test_chosen_parts_share_the_whole_time():
    assert ends(["rows", "kernel"]) == pytest.approx(
        {("kernel", False): 34 / 44, ("rows", False): 39 / 44, ("rows", True): 1} | {("kernel", True): 39 / 44}
    )
    assert list(ends(SHARES).values())[-1] == 1


def test_sigterm_prints_what_was_done(tmp_path, capsys):
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(SystemExit, match="143"):
        main(["--csv", str(tmp_path / "gpu.csv")], ["-c", HOSTILE.replace("60", "6000")])
    assert "ended with status -11" in capsys.readouterr().out


@pytest.mark.parametrize("is_there", [True, False])
def test_a_user_without_a_folder_has_one_for_the_run(monkeypatch, tmp_path, capsys, is_there):
    """CuPy does not import where it can make no folder there."""
    home = tmp_path if is_there else tmp_path / "none"
    monkeypatch.setenv("HOME", str(home))
    told = '{"unavailable": f"{os.path.isdir(home)} {home}"}'
    print_home = f'import json, os; home = os.environ["HOME"]; print(json.dumps({told}), flush=True)'
    assert main([], ["-c", print_home]) == 2
    *_, was_there, found = capsys.readouterr().err.split()
    assert was_there == "True" and Path(found).is_dir() == (Path(found) == home) == is_there


def test_no_answer_is_no_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "READY_SECONDS", 0.1)
    assert main(["--csv", str(tmp_path / "gpu.csv")], ["-c", "import time; time.sleep(60)"]) == 2
    assert "no answer in time" in capsys.readouterr().err


def test_a_csv_that_takes_no_rows_is_known_before_anything_is_done(tmp_path, capsys):
    (tmp_path / "gpu.csv").write_text("name,median\n")
    for path, reason in ((tmp_path / "gpu.csv", "has the columns name, median"), (tmp_path, "Is a directory")):
        assert main(["--csv", str(path)], ["-c", HOSTILE]) == 2
        assert reason in capsys.readouterr().err


def test_what_there_is_no_time_for_is_reported(tmp_path, capsys):
    path, idle = tmp_path / "gpu.csv", ["-m", "tests.bench.gpu_worker", "--idle"]
    assert main(["--quick", "--minutes", "0", "--csv", str(path)], idle) == 3
    assert {row["status"] for row in read_csv(path)} == {"not run"}
    assert "attention bias 7 float16: not run" in capsys.readouterr().err


def test_what_cannot_be_captured_is_timed_by_events():
    with driverless(emulated=False):
        seen = []
        timed = by_graph([lambda: seen.append(1), lambda: cupy.asarray(np.ones(3))])
        assert (timed.method.partition(":")[0], timed.calls) == ("events; no graph", 2)
        seen.clear()
        timed.variant.call()
    assert seen == [1]


def family_row(name):
    with driverless() as gpu:
        gpu.launches = deque(maxlen=0)  # which would keep their arguments alive
        (step,) = (step for step in checks.steps(1, [name.partition(",")[0]]) if step.name == name)
        (row,) = step.run()
    return row


def test_a_family_that_cannot_be_captured_is_wrong(monkeypatch):
    """Though it computes what is right."""

    def refuse(stream, mode):
        raise CaptureError("no graphs here")

    monkeypatch.setattr(Stream, "begin_capture", refuse)
    row = family_row("bert-base-uncased")
    assert row["status"] == "wrong"
    assert row["note"].startswith("1 wrong; captured: NotCapturedWarning") and "no graphs here" in row["note"]


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [False, True])
def test_gradients_of_graphs_are_checked(monkeypatch, is_wrong):
    if is_wrong:
        real = TrainingPass.backward
        monkeypatch.setattr(TrainingPass, "backward", lambda done, gradient: real(done, 1.01 * gradient))
    row = family_row("mpnet-base, gradients")
    assert row.get("status") == ("wrong" if is_wrong else None), row
    assert not is_wrong or "wrong; captured: " in row["note"]


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [False, True])
def test_passes_under_way_at_once_are_checked(monkeypatch, is_wrong):
    if is_wrong:
        monkeypatch.setattr(Workspace, "is_free", True)  # all have one memory
    row = family_row("bert-base-uncased, two at once")
    assert row.get("status") == ("wrong" if is_wrong else None), row


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, place, function",
    [
        ("luke-base", luke_adapter, "split_rows"),
        ("xlnet-base-cased", TwoStreamAdapter, "_next_memory"),
        ("transfo-xl-wt103", CausalRecurrentAdapter, "_next_memory"),
    ],
)
@pytest.mark.parametrize("is_wrong", [False, True])
def test_entities_and_memories_are_checked(monkeypatch, name, place, function, is_wrong):
    real = getattr(place, function)

    def call(*arguments, **options):
        made = real(*arguments, **options)
        *before, last = made if type(made) is tuple else (made,)
        if is_wrong and isinstance(last, cupy.ndarray):
            last = 1.01 * last
        return (*before, last) if before else last

    monkeypatch.setattr(place, function, call)
    row = family_row(name)
    assert row.get("status") == ("wrong" if is_wrong else None), row
    assert not is_wrong or row["note"].startswith("4 wrong; operation by operation: off by 0.0"), row


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
    assert model["status"] == "wrong" and "wrong; operation by operation: off by" in model["note"]
    assert "wrong; (1,) along 0, contiguous: AssertionError: " in kernel["note"]


def test_a_kernel_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(softmax_cuda, "softmax", lambda input, dim: 1 / 0)
    monkeypatch.setattr(checks, "on_disk", lambda backend: ["softmax", "gelu"])
    with driverless():
        steps = [step for step in checks.steps(20, []) if step.kind == "kernel"]
        rows = {(step.name, step.dtype): row for step in steps for row in step.run()}
    assert "ZeroDivisionError" in rows["softmax", "float16"]["note"]
    assert "note" not in rows["gelu", "float16"]
