"""Interleaved timing.

The variants of one comparison take turns, in a new random order each round, so that a temporary slowdown of the machine
affects all of them. A ratio is the median over the rounds of the ratio within a round. Before each sample of a short
call, one untimed call of the same variant restores its data and threads (OpenBLAS and OpenMP threads keep spinning for
a while after the previous variant). Python's garbage collector is off.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

MIN_SAMPLE = 1e-3  # seconds: short calls are repeated within a sample until it is this long
SHORT_CALL = 50e-3  # seconds
MIN_ROUNDS = 5

Clock = Callable[[Callable[[], Any], int], float]


def host_clock(call: Callable[[], Any], repeats: int) -> float:
    """Return the seconds that `repeats` calls take, results freed included."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


class GpuClock:
    """Seconds between two CUDA events around the calls, on the current stream of CuPy."""

    def __init__(self, cupy: Any):
        self._cuda = cupy.cuda

    def __call__(self, call: Callable[[], Any], repeats: int) -> float:
        start, stop = self._cuda.Event(), self._cuda.Event()
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return self._cuda.get_elapsed_time(start, stop) / 1e3  # CUDA returns milliseconds


class Variant(NamedTuple):
    """One side of a comparison: a call without arguments and the clock that times it."""

    call: Callable[[], Any]
    clock: Clock = host_clock


class Times(NamedTuple):
    """Seconds per call of one variant, one sample a round."""

    samples: np.ndarray
    repeats: int  # calls per sample

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def spread(self) -> float:
        """The distance between the quartiles divided by the median."""
        low, high = np.quantile(self.samples, [0.25, 0.75])
        return float(high - low) / self.median

    def ratio(self, other: "Times") -> float:
        """Return the median over rounds of this time divided by the time of `other`."""
        return float(np.median(self.samples / other.samples))

    def columns(self) -> dict[str, float]:
        """Return the columns of the benchmarks' CSVs."""
        least = float(self.samples.min())
        return {"median_s": self.median, "min_s": least, "spread": self.spread, "rounds": len(self.samples)}


def measure(variants: Mapping[str, Variant], rounds: int = 21, seconds: float = 2.0) -> dict[str, Times]:
    """Time the variants `rounds` times in turns; no new round after `seconds` once MIN_ROUNDS are done."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    with _no_garbage_collection():
        first = {name: _one_call(variant) for name, variant in variants.items()}
        repeats = {name: max(1, math.ceil(MIN_SAMPLE / max(first[name], 1e-9))) for name in variants}
        for order in _rounds(list(variants), rounds, seconds):
            for name in order:
                call, clock = variants[name]
                if first[name] < SHORT_CALL:
                    call()
                samples[name].append(clock(call, repeats[name]) / repeats[name])
    return {name: Times(np.array(samples[name]), repeats[name]) for name in variants}


def _one_call(variant: Variant) -> float:
    variant.call()  # compiles, allocates, starts threads
    return variant.clock(variant.call, 1)


def _rounds(names: list[str], rounds: int, seconds: float) -> Iterator[list[str]]:
    """Yield the order of each round."""
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    for done in range(rounds):
        if done >= MIN_ROUNDS and time.perf_counter() > end:
            return
        shuffle(names)
        yield names


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---- a clock for libraries with their own thread pools in one process ------------------------------------------------
# After a call, worker threads keep spinning while they wait for the next: ONNX Runtime's for 40 ms, GNU OpenMP's
# (PyTorch, CTranslate2) for 10 ms, TBB's (OpenVINO, ours) for 1 ms. On as many cores as threads they take a core from
# the next variant. Switching the spinning off (ONNX Runtime's session.intra_op.allow_spinning, OMP_WAIT_POLICY) would
# slow those libraries down themselves. So each sample waits until the process is idle, and then, if the call is short,
# makes one untimed call that wakes the library's own threads and brings its data into the caches.

STEP = 4e-3  # seconds of sleep between two checks
IDLE = 0.1  # of one core
LONGEST_WAIT = 1.0  # seconds; threads that spin longer also do so in users' processes


def settle() -> bool:
    """Sleep until the threads of this process do; return whether they did within LONGEST_WAIT."""
    end = time.perf_counter() + LONGEST_WAIT
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(STEP)
        if time.process_time() - before < IDLE * STEP:
            return True
    return False


def settled_clock(call: Callable[[], Any], repeats: int) -> float:
    """Return the seconds that `repeats` calls take, starting with an idle process."""
    settle()
    elapsed = host_clock(call, 1)
    return host_clock(call, repeats) if elapsed < SHORT_CALL or repeats > 1 else elapsed
