"""CUDA graphs: a pass captured on a stream, with all of its arrays in one block of memory.

    lifetimes = Lifetimes()
    with cupy.cuda.using_allocator(lifetimes.allocate):
        results = run()                                      # measured, with memory from the caller's pool
    plan = lifetimes.plan(results)
    graph, results = capture(stream, run, Arena(plan, memory))  # the same allocations in the same order, in `memory`

The captured run allocates nothing: its n-th array gets the n-th offset of the plan. CuPy's pool could not guarantee
that, since it looks for the best fit among the blocks that happen to be free. The results are contiguous, after all
other arrays, so that one copy moves them.
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

ALIGNMENT = 512  # bytes, as of CuPy's pool


class MemoryPlan(NamedTuple):
    """The bytes and the offset of each array, in the order of allocation.

    Attributes:
        places: (bytes, offset) of each array.
        results: where the results begin.
        nbytes: the bytes of all arrays together.
    """

    places: tuple[tuple[int, int], ...]
    results: int
    nbytes: int


class _Array:
    """Memory in use; it records its release."""

    def __init__(self, lifetimes: "Lifetimes", size: int, memory: Any):
        self.size, self.memory, self._lifetimes = size, memory, lifetimes
        self.born, self.died = lifetimes.tick(), None

    def owner(self) -> "_Owner":
        return _Owner(self)

    def end(self) -> None:
        self.died, self.memory = self._lifetimes.tick(), None


class _Owner:
    """The object that a CuPy array keeps alive; the memory is released with it."""

    def __init__(self, array: _Array):
        self._array = array

    def __del__(self) -> None:
        self._array.end()


class Lifetimes:
    """An allocator for CuPy that records which arrays live at the same time."""

    def __init__(self) -> None:
        self._cuda = importlib.import_module("cupy").cuda
        self._source = self._cuda.get_allocator()
        self._arrays: list[_Array] = []
        self._clock = 0

    def tick(self) -> int:
        """Return the number of allocations and releases before this one."""
        self._clock += 1
        return self._clock

    def allocate(self, size: int) -> Any:
        """Return memory from the allocator that was active before this one."""
        memory = self._source(size)
        if not size:
            return memory
        array = _Array(self, size, memory)
        self._arrays.append(array)
        device = self._cuda.runtime.getDevice()
        return self._cuda.MemoryPointer(self._cuda.UnownedMemory(memory.ptr, size, array.owner(), device), 0)

    def plan(self, results: tuple[Any, ...]) -> MemoryPlan:
        """Return the place of each array in another run: arrays that live at the same time do not overlap.

        `results` live until the end. Raises RuntimeError if another array does, too: a captured run would reuse its
        place.
        """
        places = {result.data.mem.ptr for result in results}
        kept = sum(it.size for it in self._arrays if it.died is None and it.memory.ptr not in places)
        if kept:
            raise RuntimeError(f"a pass to be captured keeps {kept} bytes besides its results, expected none")
        found: dict[_Array, int] = {}
        for array in self._arrays:
            if array.died is not None:
                live = sorted((place, it.size) for it, place in found.items() if it.died > array.born)
                found[array] = _first_gap(live, array.size)
        first = end = _aligned(max((place + it.size for it, place in found.items()), default=0))
        for array in self._arrays:
            if array.died is None:
                found[array], end = end, _aligned(end + array.size)
        return MemoryPlan(tuple((it.size, found[it]) for it in self._arrays), first, end)


def _first_gap(live: list[tuple[int, int]], size: int) -> int:
    """Return the lowest offset of `size` free bytes between the live (offset, bytes), which are in order."""
    start = 0
    for place, taken in live:
        if start + size <= place:
            break
        start = max(start, _aligned(place + taken))
    return start


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """An allocator for CuPy that gives out the places of a plan, one after the other, each once.

    Raises RuntimeError in a run that allocates arrays other than those of the measured run.
    """

    def __init__(self, plan: MemoryPlan, memory: Any):
        self._plan, self._memory, self._next = plan, memory, 0
        self._cuda = importlib.import_module("cupy").cuda

    def allocate(self, size: int) -> Any:
        """Return the next place."""
        if not size:
            return self._cuda.MemoryPointer(self._memory.mem, 0)
        places = self._plan.places
        if self._next == len(places) or places[self._next][0] != size:
            expected = "none" if self._next == len(places) else f"{places[self._next][0]} bytes"
            raise RuntimeError(
                f"array {self._next} of a captured pass takes {size} bytes, expected {expected} as in the run "
                "before: the pass depends on more than the layout of its batch"
            )
        self._next += 1
        return self._cuda.MemoryPointer(
            self._memory.mem, self._memory.ptr - self._memory.mem.ptr + places[self._next - 1][1]
        )


def capture(stream: Any, work: Callable[[], Any], arena: Arena) -> tuple[Any, Any]:
    """Return the graph of the work on `stream`, with its arrays in the arena, and the result of `work`."""
    cuda = importlib.import_module("cupy").cuda
    with stream:
        # Other threads may allocate and wait meanwhile; this one may not.
        stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
        try:
            with cuda.using_allocator(arena.allocate):
                made = work()
        except BaseException:
            with suppress(RuntimeError):  # a call that CUDA rejects ends the capture; ending it again is an error
                stream.end_capture()
            raise
        return stream.end_capture(), made
