"""How calls on the GPU are timed: recorded once as a CUDA graph and replayed, so that Python's time does not count.

What cannot be recorded is timed call by call between two CUDA events; there the slower of Python and the GPU counts,
and the row says so.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bench.measure import GpuClock, Variant

GRAPH, EVENTS = "graph", "events"
Calls = Sequence[Callable[[], Any]]


class Timed(NamedTuple):
    """What a variant does `calls` of at a time, and how it is timed: "graph", or "events" and why."""

    variant: Variant
    calls: int
    method: str


def by_graph(calls: Calls) -> Timed:
    """All calls, one after another, as one graph; the inputs of one have left the cache when they come again."""
    cupy = importlib.import_module("cupy")
    try:
        launch = _captured(cupy, calls)
    except Exception as error:  # whatever a capture does not allow
        return by_events(calls, f"no graph: {type(error).__name__}: {error}")
    return Timed(Variant(launch, GpuClock(cupy)), len(calls), GRAPH)


def by_events(calls: Calls, reason: str = "") -> Timed:
    """All calls, one after another, as they are."""

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
            with suppress(Exception):  # the capture is invalid, which is no news
                stream.end_capture()
            raise
        graph = stream.end_capture()

    def launch() -> None:
        graph.launch(cupy.cuda.get_current_stream())

    launch.uses = (memory, results)  # which live as long as the graph
    return launch


class _Memory:
    """An allocator for a capture, in which nothing may be allocated: it gives what a first run was given once more."""

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
            raise RuntimeError("the call allocates otherwise than before")
        self._given += 1
        return piece
