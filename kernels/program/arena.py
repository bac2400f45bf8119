"""One block of GPU memory for all arrays of a pass, laid out by when each of them lived in a run of the same pass.

    lifetimes = Lifetimes()
    with cupy.cuda.using_allocator(lifetimes.allocate):
        results = run()                                      # measured, with memory of the caller's pool
    layout = lifetimes.layout(results)
    with cupy.cuda.using_allocator(Arena(layout, memory).allocate):
        run()                                                # the same allocations in the same order, within `memory`

The second run allocates nothing: its n-th array has the n-th place. So it can be captured as a graph, which the pool
of CuPy could not promise, since it searches for the best fit among what happens to be free. The results stand side by
side behind all else, so that one copy takes them elsewhere.
"""

import importlib
from typing import Any, NamedTuple

ALIGNMENT = 512  # bytes, as of CuPy's pool


class Layout(NamedTuple):
    """(bytes asked for, offset) of each array in the order of their allocation, where the results begin, and the bytes
    of all together."""

    places: tuple[tuple[int, int], ...]
    results: int
    nbytes: int


class _Array:
    """Memory that was handed out; it tells when it is let go."""

    def __init__(self, lifetimes: "Lifetimes", size: int, memory: Any):
        self.size, self.memory, self._lifetimes = size, memory, lifetimes
        self.born, self.died = lifetimes.tick(), None

    def owner(self) -> "_Owner":
        return _Owner(self)

    def end(self) -> None:
        self.died, self.memory = self._lifetimes.tick(), None


class _Owner:
    """What a CuPy array keeps alive; with it goes the memory."""

    def __init__(self, array: _Array):
        self._array = array

    def __del__(self) -> None:
        self._array.end()


class Lifetimes:
    """An allocator for CuPy that notes which arrays live at the same time."""

    def __init__(self) -> None:
        self._cuda = importlib.import_module("cupy").cuda
        self._source = self._cuda.get_allocator()
        self._arrays: list[_Array] = []
        self._clock = 0

    def tick(self) -> int:
        """The number of allocations and ends before this one."""
        self._clock += 1
        return self._clock

    def allocate(self, size: int) -> Any:
        """Memory from the allocator that was in force before this one."""
        memory = self._source(size)
        if not size:
            return memory
        array = _Array(self, size, memory)
        self._arrays.append(array)
        device = self._cuda.runtime.getDevice()
        return self._cuda.MemoryPointer(self._cuda.UnownedMemory(memory.ptr, size, array.owner(), device), 0)

    def layout(self, results: tuple[Any, ...]) -> Layout:
        """Where each array of another run may stand: apart from those that lived at the same time.

        `results` live to the end. RuntimeError if another array still does: in the other run its place would not be its
        own for longer than that run.
        """
        places = {result.data.mem.ptr for result in results}
        kept = sum(it.size for it in self._arrays if it.died is None and it.memory.ptr not in places)
        if kept:
            raise RuntimeError(f"a pass that is to be captured keeps {kept} bytes beside its results, expected none")
        found: dict[_Array, int] = {}
        for array in self._arrays:
            if array.died is not None:
                live = sorted((place, it.size) for it, place in found.items() if it.died > array.born)
                found[array] = _first_gap(live, array.size)
        first = end = _aligned(max((place + it.size for it, place in found.items()), default=0))
        for array in self._arrays:
            if array.died is None:
                found[array], end = end, _aligned(end + array.size)
        return Layout(tuple((it.size, found[it]) for it in self._arrays), first, end)


def _first_gap(live: list[tuple[int, int]], size: int) -> int:
    """The lowest offset at which `size` bytes are free beside the live (offset, bytes), in their order."""
    start = 0
    for place, taken in live:
        if start + size <= place:
            break
        start = max(start, _aligned(place + taken))
    return start


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """An allocator for CuPy that hands out the places of a layout, one after the other, each once.

    RuntimeError for a run that asks for other arrays than the one that was measured.
    """

    def __init__(self, layout: Layout, memory: Any):
        self._layout, self._memory, self._next = layout, memory, 0
        self._cuda = importlib.import_module("cupy").cuda

    def allocate(self, size: int) -> Any:
        """The next place."""
        if not size:
            return self._cuda.MemoryPointer(self._memory.mem, 0)
        places = self._layout.places
        if self._next == len(places) or places[self._next][0] != size:
            expected = "none" if self._next == len(places) else f"{places[self._next][0]} bytes"
            raise RuntimeError(
                f"array {self._next} of a pass that is captured takes {size} bytes, expected {expected} as in the run "
                "before: what it computes depends on more than the layout of its batch"
            )
        self._next += 1
        return self._cuda.MemoryPointer(
            self._memory.mem, self._memory.ptr - self._memory.mem.ptr + places[self._next - 1][1]
        )
