"""CUDA graphs kept for batches of a layout that comes again: to a GPU what `Recordings` are to a CPU.

There every operation has a form that is noted, and compiled code runs the notes. On a GPU the stream notes what it is
given: one capture holds our kernels, CuPy's and cuBLASLt's alike, with their arguments as they are, and one launch does
all of it again, so that Python's time for each kernel is spent once for each layout and not for each pass.

A pass is captured when its layout comes for the second time:

1. The batch's integers are copied into an array that stays.
2. The pass runs twice. After the first run whatever is made at a first use (compiled kernels, tables) is there, the
   second shows what memory a pass takes, and when (arena.py).
3. It is captured on a stream of its own, with all its arrays in one block of memory. All graphs of a model share the
   block, the largest that one of them needs: what a pass leaves there is read before the next one starts.

From then on a batch is one copy into the array, one launch, and of each result one copy of the rows that are the
batch's own. All of that goes to the caller's stream; another stream's pass waits for it there, not on the host. What
the pass does must depend on the layout alone: it may not read the GPU's values, take arrays from the host or keep
something for later. A pass that does, or that CUDA refuses, is NotCaptured, and no other of its model is tried.
"""

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .arena import Arena, Lifetimes

MOST_KEPT = 32  # graphs of one model
MOST_SEEN = 256  # layouts remembered

Build = Callable[[Any], tuple[tuple[Any, ...], Any]]


class NotCaptured(RuntimeError):
    """A pass that runs but cannot be a CUDA graph, and why."""


class Graphs:
    """The graphs of a model, for any number of threads and streams: those of one version of its parameters.

    Those of another version are dropped, once no stream runs them, when a pass of this one comes.

    Attributes:
        lock: held while a pass is captured or given to a stream.
    """

    def __init__(self) -> None:
        self._version: Any = None
        self._kept: OrderedDict[Any, _Graph] = OrderedDict()  # the last used are the last
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._on_devices: dict[int, OnDevice] = {}
        self._is_refused = False  # whether a pass was NotCaptured
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, ()  # a copy has arrays at other addresses

    def has_seen(self, version: Any, key: Any) -> bool:
        """Whether this layout came before, with this version; from now on it did. False once a pass was NotCaptured."""
        if self._is_refused:
            return False
        with self.lock:
            self._take(version)
            key = _device(), key
            if key in self._seen:
                return True
            self._seen[key] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            return False

    def _take(self, version: Any) -> None:
        if version == self._version:
            return
        for shared in self._on_devices.values():
            shared.done.synchronize()  # another stream may still run one of them
        self._kept.clear()
        self._seen.clear()
        self._version = version

    def run(self, version: Any, key: Any, build: Build, batch: Any, rows: int) -> Any:
        """The first `rows` rows of each array of build(batch)[0], in a tuple.

        Args:
            version: that of the parameters.
            key: the layout, and what else the pass depends on.
            build: computes a pass of an array like `batch`: (a tuple of what it gives, what has to live as long as its
                graph).
            batch: integers, in an array whose shape the key decides.
            rows: how many rows of the results are wanted.

        Raises:
            NotCaptured: where the pass cannot be captured.
        """
        with self.lock:
            return self.graph(version, key, lambda shared: _Graph(shared, build, batch)).run(batch, rows)

    def graph(self, version: Any, key: Any, capture: Callable[["OnDevice"], Any]) -> Any:
        """The graph that is kept, or that `capture` now makes; for who holds the lock."""
        self._take(version)
        device = _device()
        if device not in self._on_devices:
            self._on_devices[device] = OnDevice()
        if (device, key) not in self._kept:
            try:
                self._kept[device, key] = capture(self._on_devices[device])
            except NotCaptured:
                self._is_refused = True
                raise
            self._let_go_of_others(device)
        self._kept.move_to_end((device, key))
        if len(self._kept) > MOST_KEPT:
            (unused, _), _ = self._kept.popitem(last=False)
            self._on_devices[unused].done.synchronize()  # another stream may still run it
        return self._kept[device, key]

    def _let_go_of_others(self, device: int) -> None:
        """Graphs in a block that has become too small would keep it beside the larger one: they are captured again."""
        shared = self._on_devices[device]
        in_use = None, shared.block
        others = [place for place, graph in self._kept.items() if place[0] == device and graph.block not in in_use]
        if others:
            shared.done.synchronize()  # another stream may still run one of them
        for place in others:
            del self._kept[place]


def _device() -> int:
    return importlib.import_module("cupy").cuda.runtime.getDevice()


class OnDevice:
    """What the graphs of a model share on one GPU: a stream to capture them, memory, and the end of the last run.

    Attributes:
        taken_by: a weak reference to the pass that the memory is now of, if passes take it for themselves.
        block: the memory; None before the first graph.
    """

    def __init__(self) -> None:
        cuda = importlib.import_module("cupy").cuda
        self.stream = cuda.Stream(non_blocking=True)
        self.done = cuda.Event(disable_timing=True)
        self.taken_by: Any = None
        self.block: Any = None

    def memory(self, nbytes: int) -> Any:
        """At least this much."""
        if self.block is None or self.block.mem.size < nbytes:
            self.block = importlib.import_module("cupy").cuda.alloc(nbytes)
        return self.block

    def captured(self, work: Callable[[], Any], arena: Arena) -> tuple[Any, Any]:
        """(the graph of what `work` does, with its arrays in the arena; what it returns)."""
        cuda = importlib.import_module("cupy").cuda
        with self.stream:
            # Other threads may allocate and wait meanwhile; this one may not.
            self.stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
            try:
                with cuda.using_allocator(arena.allocate):
                    made = work()
            except BaseException:
                with suppress(RuntimeError):  # what CUDA refuses ends the capture; that it has ended is no news
                    self.stream.end_capture()
                raise
            return self.stream.end_capture(), made


class _Graph:
    """One captured pass; `block` is the memory that it works in."""

    def __init__(self, shared: OnDevice, build: Build, batch: Any):
        self._cupy = importlib.import_module("cupy")
        self._shared = shared
        self._batch = batch.copy()
        build(self._batch)  # what fails here is no matter of graphs
        try:
            layout = self._measured(build)
            self.block = shared.memory(layout.nbytes)
            self._graph, made = shared.captured(lambda: build(self._batch), Arena(layout, self.block))
            self._results, self._kept = made
        except RuntimeError as error:  # CUDA's own are, too, but for those of memory that does not suffice
            raise NotCaptured(str(error)) from error

    def _measured(self, build: Build) -> Any:
        lifetimes = Lifetimes()
        with self._cupy.cuda.using_allocator(lifetimes.allocate):
            results, _ = build(self._batch)
        del _
        return lifetimes.layout(results)

    def run(self, batch: Any, rows: int) -> Any:
        """The first rows of the results for this batch, in arrays of their own."""
        stream = self._cupy.cuda.get_current_stream()
        stream.wait_event(self._shared.done)
        self._batch[...] = batch
        self._graph.launch(stream)
        results = tuple(result[:rows].copy() for result in self._results)
        self._shared.done.record(stream)
        return results
