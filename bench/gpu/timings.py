"""Timing on the GPU: sizes and inputs, calls recorded as CUDA graphs, results checked, then timed in turns.

Calls are recorded once as a CUDA graph and replayed, so that Python's time does not count. Calls that cannot be
recorded are timed between two CUDA events; there the slower of Python and the GPU counts, and the row says so.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from bench.measure import GpuClock, Times, Variant, measure
from bench.texts import ragged_lengths
from bertcore import kernels
from bertcore.presets import preset_config
from tests.kernels.arrays import DTYPES
from tests.tiny_families import tiny_config

# ---- sizes and inputs ------------------------------------------------------------------------------------------------

MODEL = "bert-base-uncased"
PRODUCTS = (4096, 768, 768), (4096, 768, 3072), (4096, 3072, 768), (16, 768, 3072), (16, 3072, 768)


class Sizes(NamedTuple):
    """The sizes of everything that is timed."""

    row_tokens: int
    widths: tuple[int, ...]
    products: tuple[tuple[int, int, int], ...]  # (tokens, in_features, out_features) of each
    attention_tokens: int  # cut into texts of each of the lengths
    heads: int
    head_dim: int
    lengths: tuple[int, ...]
    biased_lengths: tuple[int, ...]
    relative_lengths: tuple[int, ...]
    table_rows: int
    config: Mapping[str, Any]
    # a model's batches as lengths of texts
    batch: tuple[int, ...]
    ragged: tuple[int, ...]
    single: tuple[int, ...]
    seconds: float  # of measuring, for each comparison


def full() -> Sizes:
    """Return the sizes that the goals name."""
    return Sizes(
        32 << 10, (768, 1024, 2048, 4096), PRODUCTS,
        16 << 10, 12, 64, (512, 1024, 2048, 4096, 8192), (512, 2048), (512, 2048), 512,
        preset_config(MODEL), (128,) * 32, ragged_lengths(), (128,), 0.7,
    )  # fmt: skip


def tiny() -> Sizes:
    """Return sizes that only show that the command works."""
    return Sizes(
        10, (39, 64), ((5, 39, 13),), 14, 2, 16, (7,), (7,), (7,), 6, tiny_config(MODEL), (5,) * 3, (1, 5, 2), (4,), 0.0
    )  # fmt: skip


DRAWN = 1 << 20  # numbers; larger arrays repeat them


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Return normally distributed numbers on the GPU."""
    count = math.prod(shape)
    drawn = np.random.default_rng(seed).standard_normal(min(count, DRAWN), np.float32).astype(DTYPES[dtype])
    return on_gpu(np.resize(drawn, shape))


def on_gpu(array: np.ndarray) -> Any:
    """Return a copy on the GPU."""
    with kernels.use_backend("cupy"):
        return kernels.to_backend(array)


def sets(make: Callable[[int], dict[str, Any]], least: int = 2, most: int = 32) -> list[dict[str, Any]]:
    """Return make(0), make(1), ...: twice as many bytes as the L2 cache, so that each call's inputs have left it."""
    made = [make(0)]
    nbytes = sum(array.nbytes for array in made[0].values() if hasattr(array, "nbytes"))
    count = min(most, max(least, math.ceil(2 * _cache_bytes() / nbytes)))
    return made + [make(seed) for seed in range(1, count)]


def _cache_bytes() -> int:
    cuda = importlib.import_module("cupy").cuda
    return cuda.Device().attributes["L2CacheSize"]


# ---- calls as graphs -------------------------------------------------------------------------------------------------

GRAPH, EVENTS = "graph", "events"
Calls = Sequence[Callable[[], Any]]


class Timed(NamedTuple):
    """A variant that makes `calls` calls at a time, and how it is timed: "graph", or "events" and why."""

    variant: Variant
    calls: int
    method: str


def by_graph(calls: Calls) -> Timed:
    """Record all calls, one after another, as one graph."""
    cupy = importlib.import_module("cupy")
    try:
        launch = _captured(cupy, calls)
    except Exception as error:  # anything that a capture refuses
        return by_events(calls, f"no graph: {type(error).__name__}: {error}")
    return Timed(Variant(launch, GpuClock(cupy)), len(calls), GRAPH)


def by_events(calls: Calls, reason: str = "") -> Timed:
    """Make all calls, one after another, without a graph."""

    def call() -> None:
        for one in calls:
            one()

    cupy = importlib.import_module("cupy")
    return Timed(Variant(call, GpuClock(cupy)), len(calls), f"{EVENTS}; {reason}" if reason else EVENTS)


def _captured(cupy: Any, calls: Calls) -> Callable[[], None]:
    memory, stream = _Memory(cupy), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()  # the inputs are there
    with stream:
        for call in calls:
            call()  # compiles
        with cupy.cuda.using_allocator(memory.record):
            results = [call() for call in calls]
        stream.synchronize()
        stream.begin_capture()
        try:
            with cupy.cuda.using_allocator(memory.again):
                results = [call() for call in calls]
        except Exception:
            with suppress(Exception):  # the capture is invalid, which raises again
                stream.end_capture()
            raise
        graph = stream.end_capture()

    def launch() -> None:
        graph.launch(cupy.cuda.get_current_stream())

    launch.uses = (memory, results)  # must live as long as the graph
    return launch


class _Memory:
    """An allocator for a capture, which may not allocate: it hands out the memory of a first run again."""

    def __init__(self, cupy: Any):
        self._allocate = cupy.cuda.get_allocator()
        self._pieces: list[Any] = []
        self._given = 0

    def record(self, size: int) -> Any:
        self._pieces.append(self._allocate(size))
        return self._pieces[-1]

    def again(self, size: int) -> Any:
        piece = self._pieces[self._given]
        if piece.mem.size < size:
            raise RuntimeError("the call allocates other sizes than before")
        self._given += 1
        return piece


# ---- steps and rows --------------------------------------------------------------------------------------------------

ROUNDS = 15
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4}  # of the largest number that is compared
COMPARED = 64  # rows


class Step(NamedTuple):
    """A part of the run, done as a whole or not at all; `run` yields its rows. `is_beside`: it includes a peer."""

    kind: str
    name: str
    dtype: str
    run: Callable[[], Iterator[dict[str, Any]]]
    is_beside: bool = False


class Other(NamedTuple):
    """A variant to compare ours with, and the goal: its time divided by ours."""

    timed: Timed
    goal: float | None


def rows(
    ours: Timed, others: Mapping[str, Other], seconds: float, nbytes: int | None = None, flops: float | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the others, or one row without others. nbytes, flops: of one call."""
    timed = {"ours": ours} | {name: other.timed for name, other in others.items()}
    times = measure({name: one.variant for name, one in timed.items()}, ROUNDS, seconds)
    figures = _figures(times["ours"], ours, nbytes, flops)
    if not others:
        yield figures
    for name, (other, goal) in others.items():
        ratio = times[name].ratio(times["ours"]) * ours.calls / other.calls
        compared = {"against": name, "against_s": times[name].median / other.calls, "against_method": other.method}
        yield figures | compared | {"ratio": ratio, "goal": goal}


def _figures(times: Times, timed: Timed, nbytes: int | None, flops: float | None) -> dict[str, Any]:
    median = times.median / timed.calls
    return {
        "median_s": median,
        "spread": times.spread,
        "method": timed.method,
        "gb_per_s": None if nbytes is None else nbytes / median / 1e9,
        "tflop_per_s": None if flops is None else flops / median / 1e12,
    }


def check(found: Any, expected: Any, dtype: str) -> None:
    """Raise AssertionError unless the first rows of ours and of the peer's result agree."""
    found, expected = (_on_host(array).astype(np.float64) for array in (found, expected))
    assert found.shape == expected.shape, f"ours has shape {found.shape}, the other's {expected.shape}"
    scale = np.abs(expected).max()
    error = np.abs(found - expected).max() / scale
    assert error < TOLERANCE[dtype], f"ours is off from the other's result by {error:.2g} of its scale"


def _on_host(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        return array[:COMPARED].detach().float().cpu().numpy()
    return array[:COMPARED].get()
