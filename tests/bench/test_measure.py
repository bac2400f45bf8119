"""Interleaved timing, with clocks that tell a known time."""

import gc

import numpy as np
import pytest

from bench.measure import MIN_ROUNDS, GpuClock, Times, Variant, host_clock, measure


def pretend(seconds, log=None, name=None):
    """A variant that takes no time, and a clock that says it took `seconds` a call."""

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
    variants = {name: pretend(0.1, log, name) for name in "abc"}
    measure(variants, rounds=20, seconds=60)
    turns = log[2 * len(variants) :]  # after the first calls: 0.1 s is neither repeated nor preceded by an untimed call
    rounds = [tuple(turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert len(rounds) == 20
    assert all(sorted(order) == list("abc") for order in rounds)
    assert len(set(rounds)) > 1


def test_short_calls_are_repeated_until_the_clock_can_tell():
    times = measure({"fast": pretend(1e-5), "slow": pretend(0.2)}, rounds=3)
    assert times["fast"].repeats == 100
    assert times["slow"].repeats == 1
    assert times["fast"].median == pytest.approx(1e-5)
    assert times["slow"].median == pytest.approx(0.2)


def test_a_short_call_is_preceded_by_an_untimed_one():
    log = []
    measure({"a": pretend(0.01, log, "a")}, rounds=4)
    assert len(log) == 2 + 4 * 2


def test_rounds_end_when_the_time_is_up_but_not_before_the_least_number():
    assert len(measure({"a": pretend(1e-3)}, rounds=100, seconds=0)["a"].samples) == MIN_ROUNDS
    assert len(measure({"a": pretend(1e-3)}, rounds=2, seconds=0)["a"].samples) == 2


def test_ratios_are_paired_by_round():
    # The machine became ten times slower between b and a of the third round: the medians say 20, all rounds but one 2.
    a = Times(np.array([2.0, 2.0, 20.0, 20.0, 20.0]), 1)
    b = Times(np.array([1.0, 1.0, 1.0, 10.0, 10.0]), 1)
    assert a.ratio(b) == 2
    assert b.ratio(a) == 0.5
    assert a.columns()["min_s"] == 2
    assert a.spread == pytest.approx((20 - 2) / 20)


def test_the_garbage_collector_is_off_meanwhile_and_on_again_after():
    seen = []
    measure({"a": Variant(lambda: seen.append(gc.isenabled()), host_clock)}, rounds=1)
    assert set(seen) == {False}
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measure({"a": Variant(lambda: 1 / 0)}, rounds=1)
    assert gc.isenabled()


def test_host_clock_counts_every_call():
    calls = []
    assert host_clock(lambda: calls.append(1), 7) > 0
    assert len(calls) == 7


class FakeCuda:
    """Events that take their time from a clock which calls advance by 5 ms."""

    def __init__(self):
        self.milliseconds = 0.0
        self.waited = False
        outer = self

        class Event:
            def record(self):
                self.at = outer.milliseconds

            def synchronize(self):
                outer.waited = True

        self.Event = Event

    def get_elapsed_time(self, start, stop):
        assert self.waited, "the time is read before the GPU is done"
        return stop.at - start.at


def test_gpu_clock_reads_events_in_seconds():
    class cupy:
        cuda = FakeCuda()

    def call():
        cupy.cuda.milliseconds += 5

    assert GpuClock(cupy)(call, 3) == pytest.approx(0.015)
