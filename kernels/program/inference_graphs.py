"""CUDA graphs of passes in inference.

A batch is one copy into the array that its graph reads, one launch, and of each result one copy of the rows that are
the batch's own. All of that goes to the caller's stream; another stream's pass waits for it there, not on the host.
"""

import importlib
from collections.abc import Callable
from typing import Any

from .arena import Arena, Layout, Lifetimes
from .graph_cache import GraphCache, NotCaptured
from .workspace import Workspace

Build = Callable[[Any], tuple[tuple[Any, ...], Any]]


class InferenceGraphs:
    """The graphs of a model's passes without a tape, for any number of threads and streams."""

    def __init__(self) -> None:
        self._cache = GraphCache()

    def keep_only(self, version: Callable[[], Any]) -> None:
        """Let the graphs of other versions of the parameters than version() go, which keep those alive."""
        if not self._cache.is_empty:
            with self._cache.lock:
                self._cache.keep_only(version())

    def run(self, version: Any, key: Any, build: Build, batch: Any, rows: int) -> tuple[Any, ...] | None:
        """The first `rows` rows of each array of build(batch)[0], by a graph; None where there is none.

        Args:
            version: that of the parameters.
            key: the layout, and what else the pass depends on.
            build: computes a pass of an array like `batch`: (a tuple of what it gives, what has to live as long as its
                graph: whatever it reads that it did not make).
            batch: integers, in an array whose shape the key decides.
            rows: how many rows of the results are wanted.

        Raises:
            NotCaptured: where the pass cannot be captured.
        """
        with self._cache.lock:
            graph = self._cache.graph(version, key, lambda workspace: _InferenceGraph(workspace, build, batch))
            return None if graph is None else graph.run(batch, rows)


class _InferenceGraph:
    """One captured pass."""

    def __init__(self, workspace: Workspace, build: Build, batch: Any):
        self._workspace, self._batch = workspace, batch.copy()
        build(self._batch)  # what fails here is no matter of graphs
        try:
            layout = self._measured(build)
            arena = Arena(layout, workspace.memory(layout.nbytes))
            self._graph, made = workspace.capture(lambda: build(self._batch), arena)
        except RuntimeError as error:  # CUDA's own are, too, but for those of memory that does not suffice
            raise NotCaptured(str(error)) from error
        self._results, self._kept = made

    def _measured(self, build: Build) -> Layout:
        lifetimes = Lifetimes()
        with importlib.import_module("cupy").cuda.using_allocator(lifetimes.allocate):
            results, _ = build(self._batch)
        del _
        return lifetimes.layout(results)

    def run(self, batch: Any, rows: int) -> tuple[Any, ...]:
        """The first rows of the results for this batch, in arrays of their own."""
        with self._workspace.in_turn() as stream:
            self._batch[...] = batch
            self._graph.launch(stream)
            return tuple(result[:rows].copy() for result in self._results)
