"""What CUDA graphs work in: a block of GPU memory that one pass at a time has, on whichever stream."""

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .arena import Arena

MOST_RETIRED = 8  # graphs that wait until a GPU comes to rest, before it is waited for


class Workspace:
    """Memory on the current GPU, a stream to capture graphs on that work in it, and the end of the last pass there.

    Attributes:
        device: the GPU's number.
        block: the memory; None before the first graph.
        retired: graphs that are let go as soon as that can be.
    """

    def __init__(self, device: int) -> None:
        cuda = importlib.import_module("cupy").cuda
        self.device, self.block = device, None
        self.retired: list[Any] = []
        self._stream = cuda.Stream(non_blocking=True)
        self._done = cuda.Event(disable_timing=True)
        self._holder: Any = None

    def hold(self, holder: Any) -> None:
        """The memory is the holder's own as long as that lives."""
        self._holder = weakref.ref(holder)

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it."""
        return self._holder is None or self._holder() is None

    @contextmanager
    def in_turn(self) -> Iterator[Any]:
        """A block of a pass in the memory, on the current stream, which it gives: after what other streams do there."""
        stream = importlib.import_module("cupy").cuda.get_current_stream()
        stream.wait_event(self._done)
        try:
            yield stream
        finally:
            self._done.record(stream)

    def memory(self, nbytes: int) -> Any:
        """The block, of at least this much."""
        if self.block is None or self.block.mem.size < nbytes:
            self.block = importlib.import_module("cupy").cuda.alloc(nbytes)
        return self.block

    def capture(self, work: Callable[[], Any], arena: Arena) -> tuple[Any, Any]:
        """(the graph of what `work` does, with its arrays in the arena; what it returns)."""
        cuda = importlib.import_module("cupy").cuda
        with self._stream:
            # Other threads may allocate and wait meanwhile; this one may not.
            self._stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
            try:
                with cuda.using_allocator(arena.allocate):
                    made = work()
            except BaseException:
                with suppress(RuntimeError):  # what CUDA refuses ends the capture; that it has ended is no news
                    self._stream.end_capture()
                raise
            return self._stream.end_capture(), made

    def let_go(self) -> None:
        """Free what is retired, with all that it keeps, if no stream runs it and nobody holds the workspace.

        CUDA keeps a graph that runs, but not the memory that it reads and writes, which others would be given. Where
        the host is ahead of the GPU all the time, as in training, there would be ever more of them: it waits.
        """
        if self.retired and self.is_free:
            if len(self.retired) > MOST_RETIRED:
                self._done.synchronize()
            if self._done.done:
                self.retired.clear()
