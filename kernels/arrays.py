"""The types of arrays in annotations, and the precision in which operations compute.

The working dtype is float32 for float16, bfloat16 and float32, float64 for float64.
"""

import functools
import importlib
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:  # neither library is imported before its first use
    import cupy
    import torch
    from numpy.typing import ArrayLike as _ArrayLike
    from numpy.typing import DTypeLike

    from .deferred import Deferred

    Array: TypeAlias = np.ndarray | cupy.ndarray | torch.Tensor
    """An array of NumPy, CuPy or PyTorch."""
    NativeArray: TypeAlias = np.ndarray | cupy.ndarray
    """An array of NumPy or CuPy."""
    Operand: TypeAlias = np.ndarray | cupy.ndarray | Deferred
    """An array within an operation, of NumPy or CuPy; or one that a program computes later."""
    ArrayLike: TypeAlias = _ArrayLike | cupy.ndarray
    """Numbers in lists or an array of NumPy or CuPy."""
else:
    Array = NativeArray = Operand = ArrayLike = DTypeLike = Any

ArrayT = TypeVar("ArrayT", bound="np.ndarray | cupy.ndarray | torch.Tensor")
"""The kind of array that came in, for functions that return the same kind."""

# Decorates functions that compute with NumPy: infinities and NaN follow IEEE 754, whatever numpy.seterr is set to.
ieee_arithmetic = np.errstate(all="ignore")


@functools.cache  # NumPy builds a dtype's name anew at each access
def is_bfloat16(dtype):
    """Return whether a dtype is ml_dtypes.bfloat16, without importing ml_dtypes."""
    return dtype.name == "bfloat16"


def bfloat16():
    """Return ml_dtypes.bfloat16, imported at its first use."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)


def working_dtype(dtype):
    """Return float32 for float16, bfloat16 and float32, float64 for float64."""
    return np.promote_types(dtype, np.float32)


def widen(array):
    """Return `array` as a C-contiguous array of its working dtype, perhaps `array` itself: do not write to it.

    C order makes the order of every NumPy sum depend on the shape alone, not on the caller's memory layout.
    """
    if array.dtype.itemsize >= 4 and array.flags.c_contiguous:
        return array
    return np.asarray(array, dtype=working_dtype(array.dtype), order="C")


def sum_rows(rows):
    """Sum `rows` over every axis but the last, in float64.

    Parameter gradients sum over thousands of tokens: a float32 running sum would lose two or three digits.
    """
    return rows.sum(axis=tuple(range(rows.ndim - 1)), dtype=np.float64)
