"""CUDA graphs of a pass whose gradients are wanted: one of its forward, one of its backward.

What `Graphs` says holds here as well. Both graphs work in one block of memory, where what the forward keeps for the
backward stands from the launch of the one to that of the other. Till then the block is taken, and what other passes
come meanwhile are computed operation by operation: all graphs of a model share the block. The gradients stand there
side by side, and whoever is given them gets copies of their own, by one copy of all.

Beyond a batch's own rows an array is zeros, so that whatever is there has a part in nothing: a pass has to see to it
that zeros in a row of the output's gradient are zeros in whatever that row adds to a gradient.
"""

import importlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .arena import Arena, Lifetimes
from .graphs import Graphs, NotCaptured, OnDevice

# A pass that takes more of a GPU's memory than this has kernels that take longer than Python does for them, and the
# memory is better left to passes of other layouts.
MOST_OF_MEMORY = 1 / 8

Backward = Callable[[Any], tuple[Any, ...]]
Build = Callable[..., tuple[Any, Backward, Any]]


class TrainingGraphs(Graphs):
    """The graphs of a model's passes under a tape, for any number of threads and streams: those of one version.

    What passes read and may change between them has to stay at its address: that is the version.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainingGraphs, ()  # a copy has arrays at other addresses

    def pass_of(self, version: Any, key: Any, build: Build, arrays: Sequence[tuple[Any, int]]) -> "Pass | None":
        """A pass of this layout that can be run now; None where its memory is taken, or would be too much.

        Args:
            version, key: as for `Graphs.run`.
            build: computes a pass of arrays like `arrays`, with room: (what it gives, what turns the gradient of that
                into a tuple of gradients, what has to live as long as the graphs).
            arrays: what this pass is given, and for how many rows there is room.

        Raises:
            NotCaptured: where the pass cannot be captured.
        """
        with self.lock:
            graphs = self.graph(version, key, lambda shared: _Graphs(shared, build, arrays))
            shared = graphs.shared
            if graphs.is_too_large or (shared.taken_by is not None and shared.taken_by() is not None):
                return None
            taken = Pass(graphs)
            shared.taken_by = weakref.ref(taken)
            return taken


class _Graphs:
    """The two graphs of one layout; `block` is the memory that they work in, None where there are none."""

    def __init__(self, shared: OnDevice, build: Build, arrays: Sequence[tuple[Any, int]]):
        self._cupy = importlib.import_module("cupy")
        self.shared, self.kept, self.block = shared, None, None
        self.given = [self._cupy.empty((room, *array.shape[1:]), array.dtype) for array, room in arrays]
        for target, (array, _) in zip(self.given, arrays, strict=True):
            _fill(target, array)
        try:
            self._run_once(build)
            layout = self._measured(build)
            _, whole = self._cupy.cuda.runtime.memGetInfo()
            self.is_too_large = layout.nbytes > whole * MOST_OF_MEMORY
            if not self.is_too_large:
                self._capture(build, layout)
        except MemoryError:
            self.is_too_large = True  # beside the memory that a pass takes by itself
        except RuntimeError as error:
            raise NotCaptured(str(error)) from error

    def _run_once(self, build: Build) -> None:
        output, backward, _ = build(*self.given)
        self.gradient = self._cupy.zeros_like(output)
        backward(self.gradient)

    def _measured(self, build: Build) -> Any:
        lifetimes = Lifetimes()
        with self._cupy.cuda.using_allocator(lifetimes.allocate):
            output, backward, kept = build(*self.given)
            results = output, *backward(self.gradient)
        del backward, kept
        return lifetimes.layout(results)

    def _capture(self, build: Build, layout: Any) -> None:
        shared, self.block = self.shared, self.shared.memory(layout.nbytes)
        arena = Arena(layout, self.block)
        self.forward, (self.output, backward, self.kept) = shared.captured(lambda: build(*self.given), arena)
        self.backward, self.gradients = shared.captured(lambda: backward(self.gradient), arena)
        size = layout.nbytes - layout.results
        self.results = self._cupy.ndarray((size,), "uint8", self.block + layout.results)

    def copies(self) -> tuple[Any, ...]:
        """The gradients in memory of their own."""
        copied, first = self.results.copy().data, self.results.data.ptr
        kind = self._cupy.ndarray
        return tuple(
            kind(each.shape, each.dtype, copied + (each.data.ptr - first), each.strides) for each in self.gradients
        )


class Pass:
    """One pass by the graphs of its layout, whose memory is this pass's own as long as it lives.

    Attributes:
        kept: what `build` gave to be kept.
    """

    def __init__(self, graphs: _Graphs):
        self._graphs, self.kept = graphs, graphs.kept

    def forward(self, arrays: Sequence[Any]) -> Any:
        """What the pass makes of the arrays, which may have fewer rows than there is room for: as many rows as the
        first of them has."""
        graphs, rows = self._graphs, len(arrays[0])
        stream = self._begin()
        for target, array in zip(graphs.given, arrays, strict=True):
            _fill(target, array)
        graphs.forward.launch(stream)
        output = graphs.output[:rows].copy()
        graphs.shared.done.record(stream)
        return output

    def backward(self, gradient: Any) -> tuple[Any, ...]:
        """The gradients, from that of what `forward` gave; once."""
        graphs, stream = self._graphs, self._begin()
        _fill(graphs.gradient, gradient)
        graphs.backward.launch(stream)
        gradients = graphs.copies()
        graphs.shared.done.record(stream)
        return gradients

    def _begin(self) -> Any:
        """The current stream, which waits for what another one did in the memory."""
        stream = importlib.import_module("cupy").cuda.get_current_stream()
        stream.wait_event(self._graphs.shared.done)
        return stream


def _fill(target: Any, array: Any) -> None:
    if len(array):
        target[: len(array)] = array
    if len(array) < len(target):
        target[len(array) :].fill(0)
