"""Arrays for tests and benchmarks: dtypes, memory layouts, copies on a GPU; and the call of a backward."""

import ctypes
from inspect import signature

import ml_dtypes
import numpy as np

from bertcore import kernels

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

LAYOUTS = ("contiguous", "fortran", "every_second", "reversed", "slice", "read_only")
HOST_LAYOUTS = (*LAYOUTS, "unaligned")  # which a GPU cannot read


def normal(seed, shape, dtype=np.float64, layout="contiguous", scale=1.0):
    """Normally distributed values, the same for every layout."""
    values = np.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype)
    return with_layout(values, layout)


def f32(*shape):
    """Normally distributed float32 values of this shape."""
    return normal(1, shape, np.float32)


def with_layout(array, layout):
    """An array equal to `array` whose memory is laid out as `layout` says."""
    if layout == "fortran":
        return np.array(array, order="F")
    if layout == "every_second" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        everywhere = (..., *[slice(None, None, -1)] * array.ndim)
        return np.array(array[everywhere], order="C")[everywhere]
    if layout == "slice":
        return np.pad(array, 3)[(..., *[slice(3, -3)] * array.ndim)]
    if layout == "unaligned":
        result = np.frombuffer(bytearray(array.nbytes + 2), array.dtype, array.size, 1).reshape(array.shape)
        result[...] = array
        return result
    result = np.array(array, order="C")
    result.flags.writeable = layout != "read_only"
    return result


def to_gpu(array):
    """A copy on the GPU with the same strides, that begins as far from a 16-byte boundary."""
    import cupy

    if array.size == 0:
        return cupy.asarray(array)
    begin, end = np.lib.array_utils.byte_bounds(array)
    room = cupy.empty(end - begin + 16, np.uint8)[begin % 16 :][: end - begin]
    room[...] = cupy.asarray(np.ctypeslib.as_array((ctypes.c_uint8 * room.size).from_address(begin)))
    first = room.data + (array.__array_interface__["data"][0] - begin)
    return cupy.ndarray(array.shape, array.dtype, memptr=first, strides=array.strides)


def backward(name, grad_output, *arguments, **options):
    """The gradients of an operation at these arguments: options that its backward has go there, `backend` to both."""
    back = getattr(kernels, f"{name}_backward")
    own = {it: options.pop(it) for it in {*options} & {*signature(back).parameters} if it != "backend"}
    _, saved = getattr(kernels, name)(*arguments, save=True, **options)
    return back(grad_output, saved, backend=options.get("backend"), **own)
