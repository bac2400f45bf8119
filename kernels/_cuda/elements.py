"""Launching kernels over elements (pointwise.cuh), over many arrays at once (many.cuh), with dropout (philox.cuh)."""

import functools
from typing import Any, NamedTuple

import numpy as np

from ..activation_names import activation_code
from ..philox import threshold
from . import FLAGS, array_module, c_type, contiguous, instantiations, is_whole, runtime, template

THREADS, VECTORS, VECTOR_BYTES = 256, 2, 16  # as in pointwise.cuh
CHUNK = 4096  # elements of a block, as in many.cuh, whose blocks have THREADS threads, too
POINTWISE = instantiations("pointwise", FLAGS)


def launch_pointwise(module, activation, input, bias=None):
    """Apply the named activation to every element of input + bias; bias, along the last axis, may be None."""
    output = array_module(input).empty(input.shape, input.dtype)
    if output.size == 0:
        return output
    width = 1 if bias is None else bias.size
    input, bias = contiguous(input, bias)  # NumPy adds an axis to an array without axes
    args = (input, bias, output, np.int64(input.size), np.uint32(width), np.int32(activation_code(activation)))
    kernel = template("pointwise", c_type(input.dtype), is_whole(input.size, input, output))
    module.launch(kernel, (blocks(input, VECTORS),), (THREADS,), args)
    return output


def blocks(input, vectors):
    """Return the number of blocks for the elements of `input`, with `vectors` of 16 bytes for each thread."""
    per_vector = VECTOR_BYTES // input.dtype.itemsize
    room = input.size + per_vector - 1  # the first vector may begin before the array
    return -(-room // (THREADS * vectors * per_vector))


def dropout_arguments(p, seed):
    """Return a kernel's arguments: address of the seed or null, the seed, the threshold of the bits, 1 / (1 - p).

    `seed`: an integer, or an array of one uint64, which the kernel reads when it runs.
    """
    at, number = (None, seed) if isinstance(seed, int) else (seed, 0)
    return at, np.uint64(number).view(np.int64), np.uint32(threshold(p) if p else 0), np.float32(1 / (1 - p))


class Table(NamedTuple):
    """The addresses of many arrays, on the device, and the number of their chunks."""

    rows: Any
    chunks: int

    def launch(self, module, kernel, *args):
        """Start `kernel` with a block for each chunk; its first arguments are the rows and their number."""
        if self.chunks:
            given = self.rows, np.int32(len(self.rows)), *args
            module.launch(kernel, (self.chunks,), (THREADS,), given)


def table_of(sets):
    """Return the table for tuples of contiguous arrays of equal size; the arrays must outlive the launch.

    One launch serves all of them, however small. The table is copied to the device without waiting, unless one of the
    last tables there had the same arrays: in training most arrays stay where they were in the previous step.
    """
    cuda = runtime()
    sizes = np.array([arrays[0].size for arrays in sets])
    addresses = np.array([cuda.address(array) for arrays in sets for array in arrays], np.int64)
    chunks = -(-sizes // CHUNK)
    rows = np.column_stack([addresses.reshape(len(sets), -1), sizes, chunks.cumsum() - chunks])[sizes > 0]
    return Table(_on_device(cuda, cuda.device_index(), cuda.stream(), rows.shape, rows.tobytes()), int(chunks.sum()))


@functools.lru_cache(maxsize=16)
def _on_device(cuda, device, stream, shape, rows):
    """Return these rows in memory of the device, copied before all later work of the stream."""
    return cuda.array_module(None).asarray(np.frombuffer(rows, np.int64).reshape(shape))
