"""What arrays are to attention's compiled code: addresses and strides, masks that are added."""

import numpy as np

from .._numba import as_kernel_array
from .reference import unbroadcast

GRAIN = 300_000  # multiply-adds: see task_count
STORAGE = {"bfloat16": np.uint16(0), np.dtype(np.float32): np.float32(0), np.dtype(np.float64): np.float64(0)}


def with_unit_columns(array):
    size = array.itemsize
    batch, head, row, unit = array.strides
    whole = unit == size and not (batch % size or head % size or row % size)
    return array if whole and array.flags.aligned else array.copy(order="C")


def view(array):
    """The first row of an array and its strides, 0 for the batch if that has size 1.

    A row is contiguous, whatever the array is, and so needs no specialisation of its own; its address costs 0.1 us this
    way, as array.ctypes.data 1 us.
    """
    row = array[0, 0, 0] if array.size else np.empty(0, array.dtype)
    strides = array.strides
    return as_kernel_array(row), (0, *strides[1:]) if array.shape[0] == 1 and strides[0] else strides


def optional_view(array, dtype):
    """`view` of an array that may be absent, with strides of 0 along axes of size 1."""
    if array is None:
        return np.empty(0, dtype), (0, 0, 0, 0)
    row, strides = view(array)
    return row, tuple(0 if size == 1 else stride for size, stride in zip(array.shape, strides, strict=True))


def view_address(array):
    """(address, stride of axis 0, of axis 1, of axis 2), strides in elements, 0 where the axis has size 1."""
    if array is None:
        return 0, 0, 0, 0
    strides = zip(array.shape[:3], array.strides, strict=False)
    return array.ctypes.data, *(0 if size == 1 else stride // array.itemsize for size, stride in strides)


def added_mask(mask, dtype):
    """A boolean or additive mask as what is added to the scores: contiguous along the keys, small where broadcast."""
    if mask is None:
        return None
    own = unbroadcast(mask)
    if own.dtype == np.bool_:
        own = np.where(own, dtype.type(0), dtype.type(-np.inf))
    return np.ascontiguousarray(np.broadcast_to(own, (*own.shape[:3], mask.shape[3])))


def sequence_table(query, key, cu_seqlens, cu_seqlens_k):
    """Per sequence: first query, queries, first key, keys."""
    batch, _, length, _ = query.shape
    if cu_seqlens is None:
        return np.tile(np.array([0, length, 0, key.shape[2]], np.int64), (batch, 1))
    table = np.zeros((len(cu_seqlens) - 1, 4), np.int64)
    table[:, 0], table[:, 1] = cu_seqlens[:-1], np.diff(cu_seqlens)
    table[:, 2], table[:, 3] = cu_seqlens_k[:-1], np.diff(cu_seqlens_k)
    return table
