"""The steps of one program, and the memory of their results."""

import functools
import importlib
import math
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
        self.storage: Any = None  # of the weights (linear/cpu/step.py), once a step uses weights
        self._idle: list[np.ndarray] = []

    def enter(self, array: np.ndarray) -> Deferred:
        """Return a computed array as a Deferred of this program."""
        memory = Memory(self, array)
        memory.is_shared = True
        return Deferred(self, array, memory)

    def call(self, module: Any, function: str, *args: Any) -> Any:
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

    def takes(self, storage: Any) -> bool:
        """Return whether weights are stored as `storage`, a typed scalar; the first call sets it."""
        if self.storage is None:
            self.storage = storage
        return type(self.storage) is type(storage)  # typed zeros are all equal

    def record(self, kind: np.dtype, tasks: int, **fields: Any) -> None:
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
