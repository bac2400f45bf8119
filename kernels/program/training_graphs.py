"""CUDA graphs of passes whose gradients are wanted: of each its forward and its backward.

Both work in one block of memory, where what the forward keeps for the backward stands from the launch of the one to
that of the other. Till then the block is held by this pass; others that come meanwhile, as where one model encodes both
texts of a pair, have their graphs in blocks of their own, of which there are a few. The gradients stand there side by
side, and whoever is given them gets copies of their own, by one copy of all.

Beyond a batch's own rows an array is zeros, so that whatever is there has a part in nothing: a pass has to see to it
that zeros in a row of the output's gradient are zeros in whatever that row adds to a gradient.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from .arena import Arena, Layout, Lifetimes
from .graph_cache import GraphCache, NotCaptured
from .workspace import Workspace

# A pass that takes more of a GPU's memory than this has kernels that take longer than Python does for them, and the
# memory is better left to passes of other layouts.
MOST_OF_MEMORY = 1 / 8
MOST_AT_ONCE = 3  # passes of a model: an anchor, a text that is like it, and one that is not

Backward = Callable[[Any], tuple[Any, ...]]
Build = Callable[..., tuple[Any, Backward, Any]]


class TrainingGraphs:
    """The graphs of a model's passes under a tape, for any number of threads and streams.

    What passes read and may change between them has to stay at its address: that is the version.
    """

    def __init__(self) -> None:
        self._cache = GraphCache(MOST_AT_ONCE)

    def begin(self, version: Any, key: Any, build: Build, arrays: Sequence[tuple[Any, int]]) -> "TrainingPass | None":
        """A pass of this layout by graphs, to be run now; None where there are none.

        Args:
            version: that of what passes read.
            key: the layout, and what else the pass depends on.
            build: computes a pass of arrays like `arrays`, with room: (what it gives, what turns the gradient of that
                into a tuple of gradients, what has to live as long as the graphs).
            arrays: what this pass is given, and for how many rows there is room.

        Raises:
            NotCaptured: where the pass cannot be captured.
        """
        with self._cache.lock:
            graphs = self._cache.graph(version, key, lambda workspace: _capture(workspace, build, arrays))
            return None if graphs is None else TrainingPass(graphs)


def _capture(workspace: Workspace, build: Build, arrays: Sequence[tuple[Any, int]]) -> "_TrainingGraphs | None":
    """The graphs of a pass; None where it takes too much memory."""
    try:
        measured = _Measured(build, arrays)
        _, whole = importlib.import_module("cupy").cuda.runtime.memGetInfo()
        if measured.layout.nbytes > whole * MOST_OF_MEMORY:
            return None
        return _TrainingGraphs(workspace, build, measured)
    except RuntimeError as error:
        raise NotCaptured(str(error)) from error


class _Measured:
    """What a pass is given, the gradient of what it gives, and the memory that it takes beside these."""

    def __init__(self, build: Build, arrays: Sequence[tuple[Any, int]]):
        cupy = importlib.import_module("cupy")
        self.given = [cupy.empty((room, *array.shape[1:]), array.dtype) for array, room in arrays]
        for target, (array, _) in zip(self.given, arrays, strict=True):
            _fill(target, array)
        output, backward, _ = build(*self.given)
        self.gradient = cupy.zeros_like(output)
        backward(self.gradient)
        del output, backward, _
        lifetimes = Lifetimes()
        with cupy.cuda.using_allocator(lifetimes.allocate):
            output, backward, kept = build(*self.given)
            results = output, *backward(self.gradient)
        del backward, kept
        self.layout: Layout = lifetimes.layout(results)


class _TrainingGraphs:
    """The two graphs of one layout in a workspace."""

    def __init__(self, workspace: Workspace, build: Build, measured: _Measured):
        self._cupy = importlib.import_module("cupy")
        self.workspace, self.given, self.gradient = workspace, measured.given, measured.gradient
        block, layout = workspace.memory(measured.layout.nbytes), measured.layout
        arena = Arena(layout, block)
        self.forward, (self.output, backward, self.kept) = workspace.capture(lambda: build(*self.given), arena)
        self.backward, self.gradients = workspace.capture(lambda: backward(self.gradient), arena)
        size = layout.nbytes - layout.results
        self._results = self._cupy.ndarray((size,), "uint8", block + layout.results)

    def copies(self) -> tuple[Any, ...]:
        """The gradients in memory of their own."""
        copied, first = self._results.copy().data, self._results.data.ptr
        kind = self._cupy.ndarray
        return tuple(
            kind(each.shape, each.dtype, copied + (each.data.ptr - first), each.strides) for each in self.gradients
        )


class TrainingPass:
    """One pass by the graphs of its layout, whose memory is this pass's own as long as it lives.

    Attributes:
        kept: what `build` gave to be kept.
    """

    def __init__(self, graphs: _TrainingGraphs):
        self._graphs, self.kept = graphs, graphs.kept
        graphs.workspace.hold(self)

    def forward(self, arrays: Sequence[Any]) -> Any:
        """What the pass makes of the arrays, which may have fewer rows than there is room for: as many rows as the
        first of them has."""
        graphs = self._graphs
        with graphs.workspace.in_turn() as stream:
            for target, array in zip(graphs.given, arrays, strict=True):
                _fill(target, array)
            graphs.forward.launch(stream)
            return graphs.output[: len(arrays[0])].copy()

    def backward(self, gradient: Any) -> tuple[Any, ...]:
        """The gradients, from that of what `forward` gave; once."""
        graphs = self._graphs
        with graphs.workspace.in_turn() as stream:
            _fill(graphs.gradient, gradient)
            graphs.backward.launch(stream)
            return graphs.copies()


def _fill(target: Any, array: Any) -> None:
    if len(array):
        target[: len(array)] = array
    if len(array) < len(target):
        target[len(array) :].fill(0)
