"""What the steps of a program (kernels/program) are made of: records that hold addresses, read by compiled code."""

import numpy as np
from numba import carray

from .jit import inline_helper
from .simd import pointer_at

OPTIONS = {"nogil": True, "error_model": "numpy"}  # of overloads: those of helpers
FLOAT, BFLOAT16, INT8, UINT8, INT32 = np.float32(0), np.uint16(0), np.int8(0), np.uint8(0), np.int32(0)  # for array_at
ADDRESS = np.intp


def record(*fields: tuple) -> np.dtype:
    """The dtype of a step's records, with (name, dtype) fields; aligned, as compiled code reads it."""
    return np.dtype(list(fields), align=True)


@inline_helper
def array_at(address, shape, like):
    """The C-contiguous array of like's dtype (a typed scalar) that lies at an address."""
    return carray(pointer_at(address, like), shape)
