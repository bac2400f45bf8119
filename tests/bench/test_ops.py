"""bench.ops: every case is right at a tiny size, a wrong kernel is caught before it is timed, the command works."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from bench import machine
from bench.ops import calls, compare, peers
from bench.ops.__main__ import main
from bench.ops.cases import DIRECTIONS, LENGTHS, OPS, SIZES, TRAINING, cases
from bench.report import read_csv
from bertcore import kernels

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
OF_INTEGERS = "nearest_codes"  # without a backward


def test_every_operation_has_cases_in_both_directions_and_lengths():
    package = Path(kernels.__file__).parent
    on_disk = {folder.name for folder in package.iterdir() if (folder / "reference.py").exists()}
    assert {*(case.folder for case in TINY), *IN_STEPS, OF_INTEGERS} == on_disk
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


def run_main(capsys, *arguments):
    status = main(["--quick", "--rounds", "1", *map(str, arguments)])
    return status, capsys.readouterr().out


@pytest.mark.slow  # it compiles every kernel
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
