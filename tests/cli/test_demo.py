"""bertcore demo, with the real model."""

import re
import subprocess
import sys
import time

import numpy as np
import pytest

from bertcore.cli import demo, main
from bertcore.cli.demo import process_age
from bertcore.demo_model import DemoModelError
from tests.demo import demo_folder  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The throughput is measured on a few texts, once."""
    monkeypatch.setattr(demo, "BENCHMARK_TEXTS", 6)
    monkeypatch.setattr(demo, "BENCHMARK_SECONDS", 0.0)


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
    monkeypatch.setattr(demo, "process_age", lambda: 99.0)
    assert main(["demo", "--backend", "numpy"]) == 0
    assert 60 < float(re.search(r"first embedding +([\d.]+) s", capsys.readouterr().out)[1]) <= 98.7


def test_columns_are_aligned():
    table = demo.similarity_table(["one", "two"], np.array([[1.0, -0.123], [-0.123, 1.0]]))
    assert table.splitlines() == ["         1      2", "  1   1.00  -0.12   one", "  2  -0.12   1.00   two"]


def test_without_the_model(monkeypatch, capsys):
    def missing():
        raise DemoModelError("no network here.\nGet it elsewhere.")

    monkeypatch.setattr("bertcore.demo_model.demo_model_folder", missing)
    assert main(["demo", "--backend", "numpy"]) == 1
    assert capsys.readouterr().err == "bertcore demo: no network here. Get it elsewhere.\n"


@pytest.mark.parametrize(
    ("compiled", "said"), [(None, "imports and loading"), ([], "from the cache"), (["a", "b"], "compiling 2 functions")]
)
def test_compilation_is_reported(compiled, said):
    assert said in demo._compilation_note(compiled)


def test_process_age_counts_from_the_start():
    start = time.perf_counter()
    code = "import time; time.sleep(0.5); from bertcore.cli.demo import process_age; print(process_age())"
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout)
    if sys.platform == "linux":
        assert 0.48 < age < time.perf_counter() - start + 0.05
    assert 0 < process_age() <= process_age()
