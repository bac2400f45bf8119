"""bench.ops: every case is right at a tiny size, a wrong kernel is caught before it is timed, the command works."""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bench import machine
from bench.ops import baselines, calls, compare, peers
from bench.ops.__main__ import main
from bench.ops.cases import DIRECTIONS, LENGTHS, OPS, SIZES, TRAINING, cases
from bench.report import read_csv
from bertcore import kernels
from bertcore.kernels import _cuda, dispatch
from tests import cuda_emulator

ROOT = Path(__file__).parents[2]
FLOAT32 = np.dtype(np.float32)
TINY = list(cases("tiny"))
QUICK = compare.Plan(backends=("numpy", "numba"), rounds=1, seconds=0)


def one_case(op, direction="forward", name=None):
    return next(case for case in TINY if case.op == op and case.direction == direction and name in (None, case.name))


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.id)
def test_every_case_passes_its_check(case):
    inputs = calls.make_inputs(case, FLOAT32)
    expected = calls.expected_results(case, inputs)
    for backend in ("numpy", "numba"):
        assert calls.unavailable_reason(case, backend, FLOAT32) is None
        calls.check(calls.bind(case, inputs, backend)(), expected, FLOAT32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [case for case in TINY if case.direction == "forward"], ids=lambda case: case.id)
def test_every_forward_passes_its_check_on_cuda(case, dtype):
    if cuda_emulator.unavailable_reason() is not None:
        pytest.skip(f"the CUDA emulator cannot be built: {cuda_emulator.unavailable_reason()}")
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    inputs = calls.make_inputs(case, dtype)
    with _cuda.use_runtime(cuda_emulator.Emulator()):
        assert calls.unavailable_reason(case, "cupy", dtype) is None
        calls.check(calls.bind(case, inputs, "cupy")(), calls.expected_results(case, inputs), dtype)


@pytest.mark.parity
@pytest.mark.parametrize("case", TINY, ids=lambda case: case.id)
def test_every_case_is_the_same_in_torch(case):
    reason = peers.torch_unavailable_reason(case)
    if case.name.startswith("ragged") or case.op.startswith("dropout"):
        assert "different lengths" in reason or "other elements" in reason
        return
    inputs = calls.make_inputs(case, FLOAT32)
    calls.check(peers.bind_torch(case, inputs)(), calls.expected_results(case, inputs), FLOAT32)


IN_STEPS = "adam_update", "cast", "clip_norm", "muon_update"  # timed as parts of a training step


def test_every_operation_has_cases_in_both_directions_and_lengths():
    package = Path(kernels.__file__).parent
    on_disk = {folder.name for folder in package.iterdir() if (folder / "reference.py").exists()}
    assert {*(case.folder for case in TINY), *IN_STEPS} == on_disk
    for size in SIZES:
        combinations = {(case.op, case.length, case.direction) for case in cases(size)}
        assert combinations == {(op, length, direction) for op in OPS for length in LENGTHS for direction in DIRECTIONS}
        ids = [case.id for case in cases(size)]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("case", [case for case in TINY if case.direction == "forward"], ids=lambda case: case.id)
def test_elements_of_the_forward_are_those_of_its_arrays(case):
    inputs = calls.make_inputs(case, FLOAT32)
    arrays = [array for array in inputs.values() if isinstance(array, np.ndarray) and array.dtype == FLOAT32]
    output = calls.bind(case, inputs, "numpy")()["output"]
    if case.op == "embedding":
        arrays = [output]  # as many rows of the table are read
    written = 0 if case.op == "cross_entropy" else output.size  # cross entropy writes one number
    assert case.elements == sum(array.size for array in arrays) + written


def test_flops_are_twice_the_multiply_adds_of_the_products():
    linear = {case.direction: case for case in TINY if case.op == "linear" and case.name == "qkv"}
    rows, width = linear["forward"].inputs["input"].shape
    assert linear["forward"].flops == 2 * rows * width * 3 * width
    assert linear[TRAINING].flops == 3 * linear["forward"].flops
    ragged = one_case("attention", name="ragged")
    assert ragged.flops == 4 * 39 * (1 * 1 + 9 * 9 + 4 * 4)


def wrong_in_one_number(module, name, monkeypatch):
    """Make the implementation's function wrong by a thousandth in the last number of what it returns."""
    right = getattr(module, name)

    def wrong(*args):
        result = right(*args)
        array = result[0] if isinstance(result, tuple) else result
        array.flat[-1] += 1e-3 * np.abs(array).max()
        return result

    monkeypatch.setattr(module, name, wrong)


@pytest.mark.parametrize("case", [case for case in TINY if case.length == "short"], ids=lambda case: case.id)
def test_a_wrong_kernel_is_caught_before_it_is_timed(case, monkeypatch):
    module = importlib.import_module(f"bertcore.kernels.{case.folder}.cpu")
    wrong_in_one_number(module, case.needs[-1] if case.direction == TRAINING else case.folder, monkeypatch)
    timed = []
    monkeypatch.setattr(compare, "measure", lambda variants, *_: timed.extend(variants) or {})
    rows = compare.compare(case, QUICK)
    assert timed == ["numpy"]
    (row,) = rows
    assert (row["variant"], row["status"], row["median_s"]) == ("numba", "wrong", None)
    assert "AssertionError" in row["note"]
    assert "is off by" in row["note"]


def test_a_failing_kernel_costs_only_its_own_row(monkeypatch):
    monkeypatch.setattr(importlib.import_module("bertcore.kernels.softmax.cpu"), "softmax", lambda input, dim: 1 / 0)
    rows = {row["variant"]: row for row in compare.compare(one_case("softmax"), QUICK)}
    assert rows["numpy"]["status"] == "ok"
    assert (rows["numba"]["status"], rows["numba"]["note"]) == ("wrong", "ZeroDivisionError: division by zero")


def test_results_of_the_wrong_dtype_or_number_are_refused():
    output = {"output": np.ones(3, np.float32)}
    both = output | {"grad_bias": output["output"]}
    calls.check(output, output | {"grad_bias": None}, FLOAT32)
    with pytest.raises(AssertionError, match="output has dtype float32, expected float16"):
        calls.check(output, output, np.dtype(np.float16))
    with pytest.raises(AssertionError, match="the results are output, expected output, grad_bias"):
        calls.check(output, both, FLOAT32)
    with pytest.raises(AssertionError, match="the results are output, grad_bias, expected output"):
        calls.check(both, output | {"grad_bias": None}, FLOAT32)


def test_what_cannot_run_is_said(monkeypatch):
    case = one_case("softmax", TRAINING)
    assert "float32 or float64" in calls.unavailable_reason(case, "numba", np.dtype(np.float16))
    with monkeypatch.context() as patch:
        patch.setitem(dispatch.IMPLEMENTATIONS, "numba", "nowhere")
        assert calls.unavailable_reason(case, "numba", FLOAT32) == "bertcore.kernels.softmax.nowhere does not exist yet"
    monkeypatch.delattr(importlib.import_module("bertcore.kernels.softmax.cpu"), "softmax_backward")
    assert (
        calls.unavailable_reason(case, "numba", FLOAT32) == "bertcore.kernels.softmax.cpu has no softmax_backward yet"
    )
    rows = compare.compare(case, QUICK)
    assert [(row["variant"], row["status"]) for row in rows] == [("numpy", "ok"), ("numba", "unavailable")]


def test_the_linear_forward_gets_prepared_weights_and_training_does_not():
    for case in (one_case("linear"), one_case("linear", TRAINING)):
        call = calls.bind(case, calls.make_inputs(case, FLOAT32), "numpy")
        is_prepared = isinstance(call.args[1]["weight"], kernels.PreparedWeight)
        assert is_prepared == (case.direction == "forward")


def test_copies_move_as_many_bytes_and_give_equal_arrays():
    copies = [variant.call() for variant in baselines.host_copies(1_000_003).values()]
    assert [copied.nbytes for copied in copies] == [1_000_003 // 2] * 2 and all((it == 1).all() for it in copies)


def test_memory_bound_cases_of_a_mebibyte_are_compared_with_copies():
    case = replace(one_case("softmax"), elements=baselines.LEAST // 4)
    rows = {row["variant"]: row for row in compare.compare(case, QUICK)}
    assert set(rows) == {"numpy", "numba", "copy", "threaded copy"}
    assert rows["numba"]["time_vs_copy"] > 0
    assert rows["numba"]["time_vs_threaded_copy"] > 0
    assert rows["numpy"]["speedup_vs_numpy"] == 1
    assert rows["copy"]["speedup_vs_numpy"] is None
    assert rows["copy"]["gb_per_s"] == pytest.approx(baselines.LEAST / rows["copy"]["median_s"] / 1e9)


def run_main(capsys, *arguments):
    status = main(["--quick", "--rounds", "1", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_quick_prints_every_case_and_backend_and_writes_the_csv(tmp_path, capsys):
    path = tmp_path / "ops.csv"
    status, printed = run_main(capsys, "--csv", path)
    assert status == 0
    rows = read_csv(path)
    assert list(rows[0]) == [*compare.COLUMNS, *machine.COLUMNS]
    expected = [case for case in cases("mini") if case.length == "short"]
    assert [(row["op"], row["name"], row["direction"]) for row in rows if row["variant"] == "numpy"] == [
        (case.op, case.name, case.direction) for case in expected
    ]
    assert {row["variant"] for row in rows} >= set(calls.BACKENDS)
    for row in rows:
        assert row["op"] in printed
        assert (row["status"] == "ok") == (row["median_s"] != "") == (row["note"] == "")
    assert all(float(row["speedup_vs_numpy"]) > 0 for row in rows if row["variant"] == "numba" and row["median_s"])
    if kernels.unavailable_reason("cupy"):
        assert f"cupy unavailable in {len(expected)} of the cases" in printed


def test_a_wrong_result_ends_with_status_1_and_is_printed(monkeypatch, capsys):
    wrong_in_one_number(importlib.import_module("bertcore.kernels.activation.cpu"), "activation", monkeypatch)
    status, printed = run_main(capsys, "--op", "gelu", "--direction", "forward", "--backend", "numba")
    assert status == 1
    assert "numba wrong in 1 of the cases, the first being gelu erf mini short forward: AssertionError" in printed


@pytest.mark.slow
def test_pytest_benchmark_runs_the_same_cases():
    selected = "softmax and mini and short and numpy and not backward"
    options = ("-n0", "bench/ops", "--benchmark-only", "--benchmark-max-time=0.01", "-k", selected)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "1 passed" in done.stdout and "benchmark 'softmax-1x16-mini-short-forward'" in done.stdout
