"""The precision in which an operation computes: float16 and bfloat16 in float32, float32 and float64 as they are."""

import functools
import importlib

import numpy as np

# Decorates what computes with NumPy: infinities and NaN come and go as IEEE 754 says, whatever numpy.seterr asks for.
ieee_arithmetic = np.errstate(all="ignore")


@functools.cache  # a dtype's name is made anew each time it is asked for: 8 calls
def is_bfloat16(dtype):
    """Whether a dtype is ml_dtypes.bfloat16, which is asked without importing that."""
    return dtype.name == "bfloat16"


def bfloat16():
    """ml_dtypes.bfloat16, imported when it is first asked for."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)


def working_dtype(dtype):
    """float32 for float16, bfloat16 and float32; float64 for float64."""
    return np.promote_types(dtype, np.float32)


def widen(array):
    """`array` as a C-contiguous array of its working dtype; itself when it already is one, so never write into it.

    C order makes the order of every NumPy sum depend on the shape alone, not on the caller's memory layout.
    """
    return np.asarray(array, dtype=working_dtype(array.dtype), order="C")


def sum_rows(rows):
    """Sum of `rows` over every axis but the last, accumulated in float64.

    Parameter gradients sum over thousands of tokens: a float32 running sum would lose two or three digits.
    """
    return rows.sum(axis=tuple(range(rows.ndim - 1)), dtype=np.float64)
