"""Arrays whose values are not computed yet, which operations accept and return in place of arrays.

The recorder of a Deferred (kernels/program) records the operations that compute it. Operations that cannot be recorded,
and code that reads a Deferred as an array, compute it first.
"""

from operator import attrgetter
from typing import Any, Protocol

import numpy as np


class Recorder(Protocol):
    """An object that records operations to compute them later."""

    has_run: bool

    def call(self, implementation: Any, function: str, *args: Any) -> Any:
        """Record a function of an implementation with Deferred arguments, or compute it at once."""

    def run(self) -> None:
        """Compute all recorded operations."""

    def release(self, block: np.ndarray) -> None:
        """Take back memory that no Deferred uses any more."""


class Deferred:
    """An array that a recorder will compute: shape, dtype and strides are known, the values are not.

    Reshaping, transposing and slicing return Deferreds of the same memory.

    Attributes:
        recorder: the Recorder that computes it.
        array: the array for its values, a view of its memory.
        memory: the Memory that it is part of.
    """

    __slots__ = ("array", "memory", "recorder")
    __array_ufunc__ = None  # arithmetic raises an error: read it with numpy.asarray

    def __init__(self, recorder: Recorder, array: np.ndarray, memory: "Memory"):
        self.recorder, self.array, self.memory = recorder, array, memory

    # Properties without a Python frame: recording reads them often.
    shape = property(attrgetter("array.shape"))
    ndim = property(attrgetter("array.ndim"))
    size = property(attrgetter("array.size"))
    dtype = property(attrgetter("array.dtype"))
    itemsize = property(attrgetter("array.itemsize"))
    strides = property(attrgetter("array.strides"))

    @property
    def is_shared(self) -> bool:
        """Return whether code outside the program may read or have written the memory."""
        return self.memory.is_shared

    def reshape(self, *shape: Any) -> "Deferred | np.ndarray":
        if not self.array.flags.c_contiguous:  # reshaping might have to copy
            return self.result().reshape(*shape)
        return Deferred(self.recorder, self.array.reshape(*shape), self.memory)

    def transpose(self, *axes: int) -> "Deferred":
        return Deferred(self.recorder, self.array.transpose(*axes), self.memory)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if part is not None and not isinstance(part, int | slice):
                return self.result()[index]  # a copy
        part = self.array[index]
        return Deferred(self.recorder, part, self.memory) if isinstance(part, np.ndarray) else self.result()[index]

    def copy(self, order: str = "C") -> np.ndarray:
        return self.result().copy(order)

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.result(), dtype, copy=copy)

    def result(self) -> np.ndarray:
        """Run the recorded operations and return the computed array."""
        self.recorder.run()
        self.memory.is_shared = True  # with the caller: no later step may write to it
        return self.array


class Memory:
    """Memory of a recorder, which later steps reuse when the last Deferred in it is gone.

    Attributes:
        is_shared: whether code outside the program may read or have written it.
    """

    __slots__ = ("block", "is_shared", "recorder")

    def __init__(self, recorder: Recorder, block: np.ndarray):
        self.recorder, self.block, self.is_shared = recorder, block, False

    def __del__(self) -> None:
        if not getattr(self, "is_shared", True):  # interrupted before it was initialised
            self.recorder.release(self.block)


def computed(array: object) -> Any:
    """Return the values of a Deferred, or `array` itself."""
    return array.result() if type(array) is Deferred else array


def are_plain(*arrays: Any) -> bool:
    """Return whether all are None, or float32 arrays or Deferreds that are C-contiguous."""
    for array in arrays:
        if array is not None:
            array = array.array if type(array) is Deferred else array
            flags = array.flags
            if array.dtype != np.float32 or not (flags.c_contiguous and flags.aligned):
                return False
    return True
