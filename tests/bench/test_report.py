"""The table and the CSV of results."""

import pytest

from bench import machine
from bench.report import Column, append_csv, read_csv, table
from bench.texts import ragged_lengths

MACHINE = {"cpu": "some, CPU", "threads": 2}


def test_csv_grows_and_each_line_has_the_machine(tmp_path):
    path = tmp_path / "new" / "results.csv"
    append_csv(path, [{"op": "softmax", "median_s": 0.5}], MACHINE)
    append_csv(path, [{"op": "gelu", "median_s": None}], MACHINE)
    assert read_csv(path) == [
        {"op": "softmax", "median_s": "0.5", "cpu": "some, CPU", "threads": "2"},
        {"op": "gelu", "median_s": "", "cpu": "some, CPU", "threads": "2"},
    ]


def test_csv_with_other_columns_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "results.csv"
    append_csv(path, [{"op": "softmax"}], MACHINE)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"results\.csv has the columns op, cpu, threads; these results have model"):
        append_csv(path, [{"model": "mini"}], MACHINE)
    assert path.read_bytes() == before


def test_no_rows_write_nothing(tmp_path):
    append_csv(tmp_path / "results.csv", [], MACHINE)
    assert not (tmp_path / "results.csv").exists()


def test_table_aligns_words_left_and_numbers_right():
    columns = (Column("op", "operation"), Column("s", "ms", ".1f", 1e3), Column("note", "note"))
    rows = [{"op": "a", "s": 0.1234, "note": "x"}, {"op": "longer than its title", "s": None}]
    assert table(rows, columns).split("\n") == [
        "operation                 ms  note",
        "a                      123.4  x",
        "longer than its title",
    ]


def test_machine_is_described_under_its_columns():
    described = machine.describe()
    assert tuple(described) == machine.COLUMNS
    assert all(described[name] for name in ("date", "cpu", "threads", "threads_from", "isa", "numpy", "numba", "blas"))


@pytest.mark.parity
def test_threads_are_set_for_kernels_and_blas():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    machine.set_threads(1)
    assert machine.describe()["threads"] == 1
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert {pool["num_threads"] for pool in pools} == {1}
    assert machine.describe()["blas"].endswith("x1")


def test_ragged_lengths_have_the_stated_mean_and_longest():
    lengths = ragged_lengths()
    assert len(lengths) == 32
    assert max(lengths) == 128
    assert min(lengths) >= 1
    assert abs(sum(lengths) / 32 - 33) < 1.5
    assert sorted(lengths) != list(lengths)
