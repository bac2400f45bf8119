"""Timing, machine, table and CSV of the benchmarks."""

import gc

import numpy as np
import pytest

from bench import machine
from bench import measure as timing
from bench.measure import MIN_ROUNDS, Times, Variant, measure, settle
from bench.report import append_csv, read_csv
from tests.refusals import refuses


def pretend(seconds, log=None, name=None):
    """A variant that takes no time, and a clock that reports `seconds` a call."""

    def call():
        if log is not None:
            log.append(name)

    def clock(call, repeats):
        for _ in range(repeats):
            call()
        return seconds * repeats

    return Variant(call, clock)


def test_variants_take_turns_in_changing_order():
    log = []
    measure({name: pretend(0.1, log, name) for name in "abc"}, rounds=20, seconds=60)
    turns = log[6:]  # after the first calls; 0.1 s is neither repeated nor preceded by an untimed call
    rounds = [tuple(turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert len(rounds) == 20 and len(set(rounds)) > 1
    assert all(sorted(order) == list("abc") for order in rounds)


def test_short_calls_are_repeated_and_preceded_by_an_untimed_one():
    times = measure({"fast": pretend(1e-5), "slow": pretend(0.2)}, rounds=3)
    assert (times["fast"].repeats, times["slow"].repeats) == (100, 1)
    assert times["fast"].median == pytest.approx(1e-5)
    log = []
    measure({"a": pretend(0.01, log, "a")}, rounds=4)
    assert len(log) == 2 + 4 * 2


@pytest.mark.parametrize("rounds, done", [(100, MIN_ROUNDS), (2, 2)])
def test_rounds_end_with_the_time_but_not_before_the_least_number(rounds, done):
    assert len(measure({"a": pretend(1e-3)}, rounds=rounds, seconds=0)["a"].samples) == done


def test_ratios_are_paired_by_round():
    # The machine became ten times slower between b and a of the third round: the medians say 20, all other rounds 2.
    a, b = Times(np.array([2.0, 2.0, 20.0, 20.0, 20.0]), 1), Times(np.array([1.0, 1.0, 1.0, 10.0, 10.0]), 1)
    assert (a.ratio(b), b.ratio(a), a.columns()["min_s"]) == (2, 0.5, 2)
    assert a.spread == pytest.approx((20 - 2) / 20)


def test_the_garbage_collector_is_off_while_measuring():
    seen = []
    measure({"a": Variant(lambda: seen.append(gc.isenabled()))}, rounds=1)
    assert set(seen) == {False} and gc.isenabled()
    refuses(ZeroDivisionError, None, measure, {"a": Variant(lambda: 1 / 0)}, rounds=1)
    assert gc.isenabled()


def test_settle_waits_for_running_threads_but_not_for_ever(monkeypatch):
    spent = iter([0, 0.004, 0.004, 0.007, 0.007, 0.007])  # busy, busy, idle
    monkeypatch.setattr(timing.time, "process_time", lambda: next(spent))
    assert settle() and next(spent, None) is None
    monkeypatch.setattr(timing, "LONGEST_WAIT", 0.05)
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.time, "process_time", lambda: next(ticks))
    assert not settle()


def test_machine_is_described_under_its_columns():
    described = machine.describe()
    assert tuple(described) == machine.COLUMNS
    assert all(described[name] for name in ("date", "cpu", "threads", "threads_from", "isa", "numpy", "numba", "blas"))
    assert 1e9 < machine.fma_limit(1) < 1e12


def test_csv_grows_and_refuses_other_columns(tmp_path):
    path, about = tmp_path / "new" / "results.csv", {"cpu": "some, CPU"}
    append_csv(path, [], about)
    assert not path.exists()
    append_csv(path, [{"op": "softmax", "median_s": 0.5}], about)
    append_csv(path, [{"op": "gelu", "median_s": None}], about)
    expected = [("softmax", "0.5", "some, CPU"), ("gelu", "", "some, CPU")]
    assert [tuple(row.values()) for row in read_csv(path)] == expected
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"results\.csv has the columns op, median_s, cpu; these results have model"):
        append_csv(path, [{"model": "mini"}], about)
    assert path.read_bytes() == before
