"""Programs: operations that are recorded one after another and then run together, in one call of compiled code.

Between two operations, a model's weights and activations evict the Python code around the next one from the processor's
caches: 30 to 130 us for an operation of BERT-base, 10 us if nothing ran in between. A program records all operations
first, while that code is cached, and calls compiled code once.

`Program.enter(array)` returns a `Deferred`, which operations accept in place of the array; those with a deferred form
(`deferred_<name>`, listed in cpu.py) record a step and return another Deferred; all others run the program so far and
compute at once, so that every combination of operations is correct. Reading a Deferred as an array also runs the
program.

Steps run in order, so the memory of a deleted Deferred is reused by later steps of the same program. `Recordings`
keeps programs, with their memory, for shapes that recur. This folder imports operations; nothing here imports it.
"""

import functools
import importlib
import math
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..deferred import Deferred, Memory, computed

ALIGNMENT = 64  # bytes: a cache line


class Step(NamedTuple):
    """One operation of a program: the dtype of its records, the number of its tasks, and the record's values."""

    kind: np.dtype
    tasks: int
    values: tuple[Any, ...]


@functools.cache
def _values(kind: np.dtype) -> itemgetter:
    """Return a getter of a record's values, in order, from a mapping by name; a record has at least two."""
    return itemgetter(*kind.names)


@functools.cache
def _compiled() -> ModuleType:
    """Import the module that loads Numba, when the first operation is recorded."""
    return importlib.import_module(".cpu", __package__)


class Program:
    """Steps that run together, recorded by one thread."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.used: list[Any] = []  # keeps alive the arrays that the steps read by address
        self.nbytes = 0  # of all memory for results
        self.has_run = False  # also True if a run was interrupted
        self.storage: np.generic | None = None  # of the weights (linear/cpu/step.py), once a step uses weights
        self._idle: list[np.ndarray] = []

    def enter(self, array: np.ndarray) -> Deferred:
        """Return a computed array as a Deferred of this program."""
        memory = Memory(self, array)
        memory.is_shared = True
        return Deferred(self, array, memory)

    def call(self, module: ModuleType, function: str, *args: Any) -> Any:
        """Record a step for `function` of an implementation, or compute it at once if it cannot be recorded."""
        given = list(args)
        for place, arg in enumerate(args):
            if type(arg) is Deferred and arg.recorder is not self:
                given[place] = arg.result()
        form = _compiled().DEFERRED_FORMS.get(function)
        noted = None if form is None else form(self, *given)
        return getattr(module, function)(*map(computed, given)) if noted is None else noted

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Deferred:
        """Return memory for the result of the next step."""
        dtype = np.dtype(dtype)
        block = self._take(math.prod(shape) * dtype.itemsize)
        return Deferred(self, np.ndarray(shape, dtype, block), Memory(self, block))

    def _take(self, size: int) -> np.ndarray:
        for index, block in enumerate(self._idle):
            if size <= block.size <= 2 * size:
                return self._idle.pop(index)
        memory = _compiled().empty((size + ALIGNMENT,), np.uint8)
        start = -memory.__array_interface__["data"][0] % ALIGNMENT
        block = memory[start : start + size]
        self.used.append(block)
        self.nbytes += size
        return block

    def release(self, block: np.ndarray) -> None:
        """Take back memory that no Deferred uses any more."""
        self._idle.append(block)

    def address(self, array: Any) -> int:
        """Return the address of a Deferred or a contiguous array, for a step; 0 for None."""
        if array is None:
            return 0
        if type(array) is Deferred:
            array = array.array
        self.used.append(array)
        return array.__array_interface__["data"][0]

    def takes(self, storage: np.generic) -> bool:
        """Return whether weights are stored as `storage`, a typed scalar; the first call sets it."""
        if self.storage is None:
            self.storage = storage
        return type(self.storage) is type(storage)  # typed zeros are all equal

    def record(self, kind: np.dtype, tasks: int, **fields: object) -> None:
        """Append a step: a record of its operation's dtype, for up to `tasks` tasks."""
        if fields.keys() != kind.fields.keys():
            raise TypeError(f"the step has the fields {sorted(fields)}, expected {sorted(kind.fields)}")
        self.steps.append(Step(kind, tasks, _values(kind)(fields)))

    def table(self) -> Any:
        """Return the steps in the form that compiled code reads (cpu.py)."""
        return _compiled().StepTable(self.steps, self.storage)

    def run(self) -> None:
        """Run the steps recorded so far."""
        self.has_run = True
        if self.steps:
            self.table().run()
            self.steps = []  # only now: an interrupted run starts again from the first step
            self.used.clear()


MOST_KEPT = 48 << 20  # bytes of the recordings of one model: about a thousand tokens of BERT-base
MOST_SEEN = 64  # shapes remembered


Build = Callable[..., Any]


class _Recording:
    """A program that can run again with new values of the same shapes, in its own memory."""

    def __init__(self, build: Build, arrays: Sequence[np.ndarray | None]):
        *entered, offsets = arrays
        self._arrays = [*(_as_entered(array, copy=True) for array in entered), offsets.copy()]
        program = Program()
        self._output = _built(program, build, self._arrays)
        self.can_run = is_complete(program, self._output)  # False if an operation had to compute at once
        self._table = program.table() if self.can_run else None
        self._used, self.nbytes = program.used, program.nbytes

    def run(self, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return the result for these values or, if the program cannot run again, for the recorded ones."""
        if self._table is None:
            return computed(self._output)
        for own, array in zip(self._arrays, arrays, strict=True):
            if own is not None:
                own[...] = array
        self._table.run()
        return self._output.array.copy()


def _as_entered(array: np.ndarray | None, copy: bool) -> np.ndarray | None:
    """Return activations in float32 and ids in int64, the dtypes that steps read."""
    return None if array is None else array.astype(np.int64 if array.dtype.kind in "iu" else np.float32, copy=copy)


def _built(program: Program, build: Build, arrays: Sequence[np.ndarray | None]) -> Any:
    *entered, offsets = arrays
    given = [_as_entered(array, copy=False) for array in entered]
    return build(*[None if array is None else program.enter(array) for array in given], offsets)


def is_complete(program: Program, output: object) -> bool:
    """Return whether all operations that lead to `output` were recorded, and none was computed at once."""
    return type(output) is Deferred and not program.has_run


class Recordings:
    """Programs kept for recurring shapes, so that a small batch costs one call of compiled code.

    Recording the operations of BERT-base takes 2.5 ms of Python, computing a text of 16 tokens in int8 takes 4 ms. A
    program is kept from the second occurrence of its shapes on, if all of it can be recorded; MOST_KEPT limits the
    memory of all.
    """

    def __init__(self) -> None:
        self.kept: dict[Any, list[_Recording]] = {}  # those that no thread runs, the last used at the end
        self.seen: dict[Any, bool] = {}  # whether a program of these shapes can be kept

    def __reduce__(self) -> tuple[Any, ...]:
        return Recordings, ()  # a copy has arrays at other addresses

    def run(self, key: Hashable, build: Build, *arrays: np.ndarray | None) -> np.ndarray:
        """Return the result of build(*arrays), computed as a program.

        Args:
            key: the values that the program depends on in addition to the shapes (number of threads).
            build: calls the operations, the same ones for the same shapes; it gets Deferreds or arrays, and must not
                read their values.
            arrays: float32 activations or ids, or None, which become Deferreds, and last the int32 offsets of the
                sequences, which stay an array and must be correct, because they are not checked here.
        """
        key = key, *[None if array is None else array.shape for array in arrays]
        recording = self._take(key)
        is_new = recording is None and self.seen.get(key)
        if is_new:
            recording = _Recording(build, arrays)
            self._note(key, recording.can_run)
        if recording is None:
            program = Program()
            output = _built(program, build, arrays)
            if key not in self.seen:
                self._note(key, is_complete(program, output))
            return computed(output)
        result = recording.run(arrays)
        if recording.can_run and recording.nbytes <= MOST_KEPT:
            self.kept.setdefault(key, []).append(recording)
            if is_new:
                self._let_go_beyond(MOST_KEPT)
        return result

    def _take(self, key: Hashable) -> _Recording | None:
        """Return a recording that no other thread runs; its shapes become the last used."""
        waiting = self.kept.pop(key, None)
        found = waiting.pop() if waiting else None
        if waiting:
            self.kept.setdefault(key, []).extend(waiting)
        return found

    def _note(self, key: Hashable, can_be_kept: bool) -> None:
        self.seen[key] = can_be_kept
        if len(self.seen) > MOST_SEEN:
            self.seen.pop(next(iter(list(self.seen))), None)

    def _let_go_beyond(self, most: int) -> None:
        sizes, total = [], 0
        for key, waiting in list(self.kept.items()):
            for one in list(waiting):
                sizes.append((key, one.nbytes))
                total += one.nbytes
        for key, nbytes in sizes:
            if total <= most:
                return
            self.kept.pop(key, None)
            total -= nbytes
