"""Programs: operations that are noted one after another and then run together, in one call of compiled code.

Between two operations a model's weights and activations sweep the processor's caches, so that the Python code around
the next one comes back from main memory: 30 to 130 us for an operation of BERT-base that takes 10 us of it when nothing
has run in between. A program notes all operations first, while that code is warm, and crosses to compiled code once.

`Program.enter(array)` gives a `Deferred`, which the operations take in the array's place; those that have a deferred
form (`deferred_<name>` in cpu.py) note a step and return a Deferred again, all others run the program so far and then
compute at once, so that every combination of operations is right. Whatever reads a Deferred as an array runs it, too.

Steps run in their order, so the memory of a Deferred that is gone serves later steps of the same program. `Recordings`
keeps programs, with their memory, for shapes that come again.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import checks

ALIGNMENT = 64  # bytes: a cache line
MOST_KEPT = 48 << 20  # bytes of the recordings of one model: one of about a thousand tokens of BERT-base
MOST_SEEN = 64  # shapes remembered


def is_plain(array: Any) -> bool:
    """Whether a float32 array or Deferred, or None, lies in memory as one block in C order."""
    if array is None:
        return True
    if type(array) is Deferred:
        array = array.array
    return array.dtype == np.float32 and array.flags.c_contiguous and array.flags.aligned


class Deferred:
    """An array that a program is going to compute: its shape, dtype and strides are known, its values are not yet.

    Reshaping, transposing and slicing give Deferreds of the same memory.
    """

    __slots__ = ("_memory", "array", "program")
    __array_ufunc__ = None  # arithmetic on it is an error, not a guess: read it with numpy.asarray

    def __init__(self, program: "Program", array: np.ndarray, memory: "_Memory"):
        self.program, self.array, self._memory = program, array, memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def itemsize(self) -> int:
        return self.array.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return self.array.strides

    def reshape(self, *shape: Any) -> Any:
        if not self.array.flags.c_contiguous:  # it might have to be copied
            return self.result().reshape(*shape)
        return Deferred(self.program, self.array.reshape(*shape), self._memory)

    def transpose(self, *axes: int) -> "Deferred":
        return Deferred(self.program, self.array.transpose(*axes), self._memory)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or isinstance(part, int | slice) for part in parts):
            return self.result()[index]  # a copy
        part = self.array[index]
        return Deferred(self.program, part, self._memory) if isinstance(part, np.ndarray) else self.result()[index]

    def copy(self, order: str = "C") -> np.ndarray:
        return self.result().copy(order)

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.result(), dtype, copy=copy)

    def result(self) -> np.ndarray:
        """The computed array; runs the program."""
        self.program.run()
        self._memory.is_shared = True  # with whoever gets the array: no later step may write there
        return self.array


class _Memory:
    """Memory of a program, which serves later steps when the last Deferred of it is gone."""

    __slots__ = ("block", "is_shared", "program")

    def __init__(self, program: "Program", block: np.ndarray):
        self.program, self.block, self.is_shared = program, block, False

    def __del__(self) -> None:
        if not getattr(self, "is_shared", True):  # interrupted before it was made
            self.program.give_back(self.block)


class Program:
    """Steps to be run together, noted by one thread."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.used: list[Any] = []  # what the steps read by address lives until they ran
        self.nbytes = 0  # of all memory it took for its results
        self.has_run = False  # or was asked to
        self.storage: Any = None  # what the weights are stored as (see cpu.py), once a step has weights
        self._idle: list[np.ndarray] = []

    def enter(self, array: np.ndarray) -> Deferred:
        """A computed array as a Deferred of this program."""
        memory = _Memory(self, array)
        memory.is_shared = True
        return Deferred(self, array, memory)

    def call(self, module: Any, function: str, args: tuple[Any, ...]) -> Any:
        """Note a step for `function` of an implementation; without a deferred form that suits, compute at once."""
        args = tuple(arg.result() if type(arg) is Deferred and arg.program is not self else arg for arg in args)
        form = getattr(module, f"deferred_{function}", None)
        noted = None if form is None else form(self, *args)
        if noted is not None:
            return noted
        return getattr(module, function)(*(arg.result() if type(arg) is Deferred else arg for arg in args))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Deferred:
        """Memory for the result of a step."""
        dtype = np.dtype(dtype)
        block = self._take(math.prod(shape) * dtype.itemsize)
        return Deferred(self, np.ndarray(shape, dtype, block), _Memory(self, block))

    def _take(self, size: int) -> np.ndarray:
        for index, block in enumerate(self._idle):
            if size <= block.size <= 2 * size:
                return self._idle.pop(index)
        from .._numba import empty

        memory = empty((size + ALIGNMENT,), np.uint8)
        start = -memory.__array_interface__["data"][0] % ALIGNMENT
        block = memory[start : start + size]
        self.used.append(block)
        self.nbytes += size
        return block

    def give_back(self, block: np.ndarray) -> None:
        """Take memory back that no Deferred stands for any more."""
        self._idle.append(block)

    def address(self, array: Any) -> int:
        """Where a Deferred or a contiguous array lies, for a step; 0 for None."""
        if array is None:
            return 0
        if type(array) is Deferred:
            array = array.array
        self.used.append(array)
        return array.__array_interface__["data"][0]

    def takes(self, storage: Any) -> bool:
        """Whether all weights can be stored as `storage`, a typed scalar; the first one asked for decides."""
        if self.storage is None:
            self.storage = storage
        return type(self.storage) is type(storage)  # typed zeros are all equal

    def note(self, *step: int) -> None:
        """Append a step: its operation and what that takes (cpu.py)."""
        self.steps.append(step)

    def run(self) -> None:
        """Run the steps noted so far."""
        self.has_run = True
        if self.steps:
            from .cpu import StepTable

            StepTable(self.steps, self.storage).run()
            self.steps = []  # not before: what is interrupted runs again, from the first step on
            self.used.clear()


def computed(array: Any) -> Any:
    """The values of a Deferred, or `array` as it is."""
    return array.result() if type(array) is Deferred else array


Build = Callable[[Any, np.ndarray], Any]


class _Recording:
    """A program that can run again, with other values of the same shapes, in the memory it has."""

    def __init__(self, build: Build, hidden: np.ndarray, cu_seqlens: np.ndarray):
        from .cpu import StepTable

        self._hidden, self._cu_seqlens = hidden.copy(), cu_seqlens.copy()
        program = Program()
        output = build(program.enter(self._hidden), self._cu_seqlens)
        self.can_run = type(output) is Deferred and not program.has_run  # else an operation had to compute at once
        self._output, self._used, self.nbytes = output, program.used, program.nbytes
        self._table = StepTable(program.steps, program.storage) if self.can_run else None

    def run(self, hidden: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
        """The result for these values, or once for those it was recorded with if it cannot run again."""
        if self._table is None:
            return computed(self._output)
        self._hidden[...], self._cu_seqlens[...] = hidden, cu_seqlens
        self._table.run()
        return self._output.array.copy()


class Recordings:
    """Programs kept for the shapes that come again, so that a small batch costs one call of compiled code.

    Noting the operations of BERT-base takes 2.5 ms of Python, a text of 16 tokens in int8 4 ms of computing. A program
    is kept from the second time on that its shapes are seen; the memory of all is bounded by MOST_KEPT.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, list[_Recording]] = {}  # those that no thread runs; the last used are the last
        self._seen: dict[Any, None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Recordings, ()  # a copy has arrays at other addresses

    def run(self, key: Any, build: Build, hidden: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
        """build(hidden, cu_seqlens), computed as a program.

        Args:
            key: what the program depends on beside the shapes (number of threads).
            build: calls the operations, the same ones for the same shapes; it takes a Deferred or an array, and reads
                the values of neither.
            hidden: float32 activations, (tokens, width).
            cu_seqlens: int32 offsets, (sequences + 1,).

        Raises:
            TypeError, ValueError: for another dtype, and offsets that do not fit `hidden`.
        """
        if hidden.dtype != np.float32 or cu_seqlens.dtype != np.int32:
            raise TypeError(f"hidden is {hidden.dtype} and cu_seqlens {cu_seqlens.dtype}, expected float32 and int32")
        checks.offsets("cu_seqlens", cu_seqlens, "hidden", len(hidden))
        key = key, hidden.shape, cu_seqlens.shape
        recording = self._take(key)
        if recording is None:
            if key not in self._seen:
                self._note(key)
                return computed(build(Program().enter(hidden), cu_seqlens))
            recording = _Recording(build, hidden, cu_seqlens)
        result = recording.run(hidden, cu_seqlens)
        if recording.can_run and recording.nbytes <= MOST_KEPT:
            self._kept.setdefault(key, []).append(recording)
            self._let_go_beyond(MOST_KEPT)
        return result

    def _take(self, key: Any) -> _Recording | None:
        """One that no other thread runs; its shapes become those that were used last."""
        waiting = self._kept.pop(key, [])
        try:
            return waiting.pop()
        except IndexError:
            return None
        finally:
            if waiting:
                self._kept.setdefault(key, []).extend(waiting)

    def _note(self, key: Any) -> None:
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            self._seen.pop(next(iter(list(self._seen))), None)

    def _let_go_beyond(self, most: int) -> None:
        kept = [(key, sum(one.nbytes for one in list(waiting))) for key, waiting in list(self._kept.items())]
        excess = sum(nbytes for _, nbytes in kept) - most
        for key, nbytes in kept:
            if excess <= 0:
                return
            self._kept.pop(key, None)
            excess -= nbytes
