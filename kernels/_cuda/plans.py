"""Plans: what a call launched, kept for the next call whose arrays are laid out alike.

What a call checks and launches depends on the shapes, strides, dtypes, alignments and devices of its arrays alone,
never on their values. So it is found out once for each layout: while a call is computed, a Trace notes every array that
is made by `empty` and every launch; the Plan that comes of it does the same with other arrays.

A launcher takes part by making its arrays with `empty`. All that it does to them, and to the arrays of the call, is
launches of this package. Where a launch is given any other array (a copy, or what a kernel of CuPy's has computed),
there is no plan, and each such call is computed anew. The seed of dropout, another number in each call, goes to a
launch as a `Seed`: a plan gives it that of its own call.
"""

from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

MOST_KEPT = 4096  # of one runtime; each takes about 1 KB
ALIGNMENT = 256  # bytes: the most that launchers tell apart, and that every array of CuPy's own has

_trace = ContextVar("bertcore_cuda_trace", default=None)


def layout(arrays):
    """What tells arrays (or Nones) apart whose calls are launched differently."""
    layouts, addresses = [], []
    for array in arrays:
        if array is None:
            layouts.append(None)
            continue
        memory = array.data
        address = memory.ptr
        layouts.append((array.shape, array.strides, array.dtype, address % ALIGNMENT, memory.device_id))
        addresses.append(address)
    if len(set(addresses)) < len(addresses):  # which of them are one and the same
        layouts.extend(map(addresses.index, addresses))
    return tuple(layouts)


class Seed(NamedTuple):
    """The call's seed, an integer of 64 bits, as an argument of a launch; nothing else may depend on it."""

    number: int

    def as_argument(self):
        """It as a kernel takes it, a long long."""
        return np.uint64(self.number).view(np.int64)


class Plan:
    """The steps of a call, in their order, and where its results are.

    A step is called with the arrays of the call, to which it appends what it makes, the number of the call's Seed, the
    places of its own arrays among them, and its constants.
    """

    def __init__(self, steps, results, device):
        self._steps, self._results, self.device = steps, results, device

    def run(self, arrays, seed):
        """The call's result, with these arrays and this number as its Seed."""
        arrays = list(arrays)
        for step, numbers, constants in self._steps:
            step(arrays, seed, numbers, *constants)
        if type(self._results) is list:
            return tuple([None if result is None else result.of(arrays) for result in self._results])
        return self._results.of(arrays)


class _Place:
    """An array of the call, or one that was made; or what it holds from `offset` bytes on, with other axes."""

    def __init__(self, number, known, offset, array):
        self._number, self._form = number, None
        if offset or (array.shape, array.strides) != (known.shape, known.strides):
            self._form = array.shape, array.dtype, array.strides
        self._offset, self._class = offset, type(array)

    def of(self, arrays):
        array = arrays[self._number]
        if self._form is None:
            return array
        shape, dtype, strides = self._form
        return self._class(shape, dtype, array.data + self._offset, strides)


class Trace:
    """Notes the steps of one call with these arrays (or Nones)."""

    def __init__(self, arrays):
        self._given = len(arrays)
        self._arrays = list(arrays)  # those that are made are appended; all live as long as this, each at its address
        self._numbers = {array.data.ptr: number for number, array in enumerate(arrays) if array is not None}
        self._steps = []
        self._is_whole = all(array is None or array.size for array in arrays)  # no memory has no address

    def made(self, array):
        """An array was made by `empty`."""
        self._steps.append((_make, (), (type(array), array.shape, array.dtype)))
        self._numbers[array.data.ptr] = len(self._arrays)
        self._arrays.append(array)
        self._is_whole = self._is_whole and bool(array.size)

    def did(self, step, arrays, *constants):
        """step(arrays, seed, numbers, *constants) does what was done, where `numbers` are the places of `arrays`."""
        numbers = tuple(None if array is None else self._numbers.get(array.data.ptr, -1) for array in arrays)
        self._is_whole = self._is_whole and -1 not in numbers
        self._steps.append((step, numbers, constants))

    def plan(self, result):
        """The Plan of the call that returned this: an array, or a tuple of arrays and Nones. None if there is none."""
        if not self._is_whole:
            return None
        parts = result if isinstance(result, tuple) else (result,)
        found = [None if part is None else self._place(part) for part in parts]
        if any(each is None and part is not None for each, part in zip(found, parts, strict=True)):
            return None
        device = next(array.data.device_id for array in self._arrays if array is not None)
        return Plan(tuple(self._steps), found if isinstance(result, tuple) else found[0], device)

    def _place(self, array):
        address = array.data.ptr
        for number, known in enumerate(self._arrays):
            offset = -1 if known is None else address - known.data.ptr
            if offset == 0 or (0 < offset < known.nbytes and number >= self._given):
                return _Place(number, known, offset, array) if known.dtype == array.dtype else None
        return None


def _make(arrays, seed, numbers, kind, shape, dtype):
    arrays.append(kind(shape, dtype))


def empty(xp, shape, dtype):
    """xp.empty(shape, dtype), as part of the plan of the call, if that has one."""
    array, trace = xp.empty(shape, dtype), _trace.get()
    if trace is not None:
        trace.made(array)
    return array


def current():
    """The Trace of the call that is computed in this context, or None."""
    return _trace.get()


@contextmanager
def tracing(trace):
    """Within the block `trace` notes the steps."""
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)
