"""What the steps of a program (kernels/program) are made of: rows of int64, read by compiled code.

Each operation's cpu.py writes its own steps (`deferred_<name>`) and reads them (`run_step`).
"""

import struct

from numba import carray

from .jit import inline_helper
from .simd import pointer_at

LINEAR, LAYER_NORM, ATTENTION, RELATIVE_ATTENTION = range(4)
FIELDS = 40
OPTIONS = {"nogil": True, "error_model": "numpy"}  # of overloads: those of helpers


def bits_of(number: float) -> int:
    """A float64 as the integer with its bits; compiled code reads it by `step.view(np.float64)`."""
    return struct.unpack("q", struct.pack("d", number))[0]


@inline_helper
def array_at(address, shape, like):
    """The C-contiguous array of like's dtype (a typed scalar) that lies at an address."""
    return carray(pointer_at(address, like), shape)
