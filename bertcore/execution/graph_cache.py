"""The CUDA graphs of a model's passes: when a pass is captured, and which graphs are kept.

One capture holds kernels of bertcore, CuPy and cuBLASLt alike, with their arguments; one launch replays all of them, so
that Python's time for each kernel is spent once for each layout and not for each pass.

The policy: a layout is captured the second time it is seen, and the least recently used of MOST_KEPT are kept, all of
one version of what they read. A capture takes three passes. The pass's inputs are copied into lasting arrays; it runs
once so that everything made at first use (compiled kernels, tables) exists, and once to measure its memory
(kernels/_cuda/capture.py); then it is captured. The graphs share a block of memory, the largest that one of them needs:
a pass's results are read from it before the next pass starts.

A pass must depend on the layout alone: it may not read values from the GPU, take arrays from the host or keep anything
for later. Otherwise, or if CUDA refuses it, it raises NotCaptured, and no other pass of its model is tried.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from bertcore.kernels._cuda.capture import Arena, Lifetimes, MemoryPlan, capture
from bertcore.kernels.arrays import NativeArray

MOST_KEPT = 8  # graphs in a workspace
MOST_SEEN = 64  # layouts remembered
# A training pass that takes more of a GPU's memory than this has kernels that take longer than Python does for them,
# and the memory is better left to passes of other layouts.
MOST_OF_MEMORY = 1 / 8
MOST_AT_ONCE = 3  # training passes of a model: an anchor, a similar text and a dissimilar one

Build = Callable[..., Any]


class NotCaptured(RuntimeError):
    """A pass runs but cannot be captured as a CUDA graph; the message says why."""


def _cuda() -> Any:
    return importlib.import_module("cupy").cuda


class Workspace:
    """Memory on one GPU for one pass at a time, on any stream, and the graphs that use it."""

    def __init__(self) -> None:
        self.block: Any = None  # the memory
        # by layout, the least recently used first; None for a layout that is not worth a graph
        self.graphs: OrderedDict[Any, _Graph | None] = OrderedDict()
        self.stream = _cuda().Stream(non_blocking=True)  # on which graphs are captured
        self.done = _cuda().Event(disable_timing=True)  # recorded at the end of the last pass
        self._holder: weakref.ref | None = None

    def hold(self, holder: object) -> None:
        """Reserve the memory for `holder` as long as it lives."""
        self._holder = weakref.ref(holder)

    @property
    def is_free(self) -> bool:
        """True if no living object holds it."""
        return self._holder is None or self._holder() is None

    @contextmanager
    def in_turn(self) -> Iterator[Any]:
        """Yield the current stream, for work in the memory once other streams are done there."""
        stream = _cuda().get_current_stream()
        stream.wait_event(self.done)
        try:
            yield stream
        finally:
            self.done.record(stream)

    def arena(self, plan: MemoryPlan) -> Arena:
        """Return the arena of a plan in the block, which grows if it is too small; its graphs are then dropped."""
        if self.block is None or self.block.mem.size < plan.nbytes:
            self.graphs.clear()
            self.block = _cuda().alloc(plan.nbytes)
        return Arena(plan, self.block)


class _Graph:
    """A captured pass; its memory and everything it reads stay until its last launch is done."""

    def __init__(self, workspace: Workspace):
        self._done, self.block = workspace.done, workspace.block

    def __del__(self) -> None:
        with suppress(Exception):  # an interpreter that ends may have no CUDA any more
            self._done.synchronize()


class GraphCache:
    """The graphs of a model, for any number of threads and streams, all for one version of what they read.

    Args:
        most_workspaces: how many passes may be under way at once on a GPU, each in memory of its own.
    """

    def __init__(self, most_workspaces: int):
        self._lock, self._most_workspaces = threading.Lock(), most_workspaces
        self._version: object = None
        self._seen: OrderedDict[tuple[int, Any], None] = OrderedDict()
        self.workspaces: dict[int, list[Workspace]] = {}
        self._is_refused = False  # whether a pass was NotCaptured

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy has arrays at other addresses

    def keep_only(self, version: Callable[[], Any]) -> None:
        """Drop graphs of versions other than version(): graphs keep what they read alive."""
        if any(workspace.graphs for workspaces in list(self.workspaces.values()) for workspace in workspaces):
            with self._lock:
                self._keep_only(version())

    def _keep_only(self, version: object) -> None:
        if version != self._version:
            self._drop_all()
            self._version = version

    def _drop_all(self) -> None:
        self._seen.clear()
        for workspaces in self.workspaces.values():
            for workspace in workspaces:
                workspace.graphs.clear()
                workspace.block = None

    def _find(
        self, version: object, key: Hashable, captured: Callable[[Workspace], _Graph | None]
    ) -> tuple[Workspace, Any] | None:
        """Return a free workspace and the graph of a layout there: the one kept, or `captured` now.

        Return None if the pass must run without a graph: the layout is new, all workspaces are held, memory does not
        suffice, or the pass is not worth a graph. Raises NotCaptured if the pass cannot be captured.
        """
        self._keep_only(version)
        device = _cuda().runtime.getDevice()
        workspace, place = None if self._is_refused else self._free_workspace(device), (device, key)
        if workspace is None:
            return None
        if key not in workspace.graphs:
            if place not in self._seen:
                self._seen[place] = None
                if len(self._seen) > MOST_SEEN:
                    self._seen.popitem(last=False)
                return None
            self._capture(workspace, place, captured)
        graph = workspace.graphs.get(key)
        if graph is None:
            return None
        workspace.graphs.move_to_end(key)
        return workspace, graph

    def _free_workspace(self, device: int) -> Workspace | None:
        workspaces = self.workspaces.setdefault(device, [])
        for workspace in workspaces:
            if workspace.is_free:
                return workspace
        if len(workspaces) == self._most_workspaces:
            return None
        workspaces.append(Workspace())
        return workspaces[-1]

    def _capture(
        self, workspace: Workspace, place: tuple[int, Any], captured: Callable[[Workspace], _Graph | None]
    ) -> None:
        try:
            with workspace.in_turn():
                graph = captured(workspace)
        except NotCaptured:
            self._is_refused = True
            self._drop_all()
            raise
        except MemoryError:  # beyond what a pass takes without a graph; later there may be more
            self._seen.pop(place, None)
            return
        workspace.graphs[place[1]] = graph
        if len(workspace.graphs) > MOST_KEPT:
            dropped, _ = workspace.graphs.popitem(last=False)
            self._seen.pop((place[0], dropped), None)


class InferenceGraphs(GraphCache):
    """The graphs of passes without a tape.

    A batch takes one copy into the array that its graph reads, one launch, and one copy of its rows of each result, all
    on the caller's stream; a pass on another stream waits on the GPU, not on the host.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def run(self, version: object, key: Any, build: Build, batch: NativeArray, rows: int) -> tuple[Any, ...] | None:
        """Return the first `rows` rows of each array of build(batch)[0], by a graph; None if there is none.

        `key` is the layout, and everything else that the pass depends on besides the `version` of the parameters. For
        an array like `batch`, integers, `build` returns (a tuple of results, the objects that it reads but did not
        make, which live as long as the graph). Raises NotCaptured if the pass cannot be captured.
        """
        with self._lock:
            found = self._find(version, key, lambda workspace: _InferenceGraph(workspace, build, batch))
            return None if found is None else found[1].run(found[0], batch, rows)


class _InferenceGraph(_Graph):
    def __init__(self, workspace: Workspace, build: Build, batch: NativeArray):
        self._batch = batch.copy()
        build(self._batch)  # errors raised here are not caused by capture
        try:
            lifetimes = Lifetimes()
            with _cuda().using_allocator(lifetimes.allocate):
                results, kept = build(self._batch)
            del kept
            plan = lifetimes.plan(results)
            del results
            arena = workspace.arena(plan)
            super().__init__(workspace)
            self.graph, (self._results, self._kept) = capture(workspace.stream, lambda: build(self._batch), arena)
        except RuntimeError as error:  # CUDA's are RuntimeErrors, too, except for lack of memory
            raise NotCaptured(str(error)) from error

    def run(self, workspace: Workspace, batch: NativeArray, rows: int) -> tuple[Any, ...]:
        """Return the first rows of the results for this batch, in arrays of their own."""
        with workspace.in_turn() as stream:
            self._batch[...] = batch
            self.graph.launch(stream)
            return tuple(result[:rows].copy() for result in self._results)


class TrainingGraphs(GraphCache):
    """The graphs of passes with gradients: a forward and a backward for each.

    Both use one block of memory, where the arrays that the forward keeps stay until the backward is launched. Until
    then the pass holds the workspace; other passes meanwhile, as when one model encodes both texts of a pair, have
    workspaces of their own. Whatever passes read stays at its address; the version identifies it.

    Rows beyond a batch's own are zeros: in a pass, zero rows of the output's gradient must add zeros to all gradients.
    """

    def __init__(self) -> None:
        super().__init__(MOST_AT_ONCE)

    def begin(self, version: object, key: Any, build: Build, arrays: Sequence[tuple[Any, int]]) -> TrainingPass | None:
        """Return a pass of this layout by graphs, to be run now; None if there are none.

        `arrays` are the pass's inputs, each with its capacity in rows. For arrays of that size `build` returns (the
        output, a function from its gradient to a tuple of gradients, the objects that must live as long as the graphs).
        Otherwise as `InferenceGraphs.run`.
        """
        with self._lock:
            found = self._find(version, key, lambda workspace: _captured_training(workspace, build, arrays))
            return None if found is None else TrainingPass(*found)


def _captured_training(workspace: Workspace, build: Build, arrays: Sequence[tuple[Any, int]]) -> _Graph | None:
    """Return the graphs of a pass; None if it takes too much memory."""
    try:
        given, gradient, plan = _measured(build, arrays)
        _, whole = _cuda().runtime.memGetInfo()
        if plan.nbytes > whole * MOST_OF_MEMORY:
            return None
        return _TrainingGraph(workspace, build, given, gradient, plan)
    except RuntimeError as error:
        raise NotCaptured(str(error)) from error


def _measured(build: Build, arrays: Sequence[tuple[Any, int]]) -> tuple[list[Any], Any, MemoryPlan]:
    """Return a pass's inputs, the gradient of its output, and the plan of the memory that it takes besides."""
    cupy = importlib.import_module("cupy")
    given = [cupy.empty((capacity, *array.shape[1:]), array.dtype) for array, capacity in arrays]
    for target, (array, _) in zip(given, arrays, strict=True):
        _fill(target, array)
    output, backward, kept = build(*given)
    gradient = cupy.zeros_like(output)
    backward(gradient)
    del output, backward, kept
    lifetimes = Lifetimes()
    with cupy.cuda.using_allocator(lifetimes.allocate):
        output, backward, kept = build(*given)
        results = output, *backward(gradient)
    del backward, kept
    return given, gradient, lifetimes.plan(results)


class _TrainingGraph(_Graph):
    def __init__(self, workspace: Workspace, build: Build, given: list[Any], gradient: NativeArray, plan: MemoryPlan):
        arena = workspace.arena(plan)
        super().__init__(workspace)
        self.given, self.gradient = given, gradient
        self.forward, (self.output, backward, self.kept) = capture(workspace.stream, lambda: build(*given), arena)
        self.backward, self.gradients = capture(workspace.stream, lambda: backward(gradient), arena)
        ndarray = importlib.import_module("cupy").ndarray
        self._results = ndarray((plan.nbytes - plan.results,), "uint8", workspace.block + plan.results)

    def copies(self) -> tuple[Any, ...]:
        """Return the gradients in memory of their own, copied all at once."""
        copied, first = self._results.copy().data, self._results.data.ptr
        kind = type(self._results)
        return tuple(
            kind(each.shape, each.dtype, copied + (each.data.ptr - first), each.strides) for each in self.gradients
        )


class TrainingPass:
    """One pass by the graphs of its layout, which holds their workspace as long as it lives."""

    def __init__(self, workspace: Workspace, graph: _TrainingGraph):
        self._workspace, self.graph = workspace, graph
        self.kept = graph.kept  # the objects that `build` returned to be kept
        workspace.hold(self)

    def forward(self, arrays: Sequence[Any]) -> NativeArray:
        """Return the output for the arrays, with as many rows as the first array."""
        graph = self.graph
        with self._workspace.in_turn() as stream:
            for target, array in zip(graph.given, arrays, strict=True):
                _fill(target, array)
            graph.forward.launch(stream)
            return graph.output[: len(arrays[0])].copy()

    def backward(self, gradient: NativeArray) -> tuple[Any, ...]:
        """Return the gradients from the gradient of `forward`'s output; call it once."""
        with self._workspace.in_turn() as stream:
            _fill(self.graph.gradient, gradient)
            self.graph.backward.launch(stream)
            return self.graph.copies()


def _fill(target: NativeArray, array: NativeArray) -> None:
    if len(array):
        target[: len(array)] = array
    if len(array) < len(target):
        target[len(array) :].fill(0)
