"""Embedding on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

The ids stay on the GPU and are not checked here: an id outside the table gives a row of NaN.
"""

import math

import numpy as np

from .. import _cuda

UNITS = {16: "uint4", 4: "unsigned", 2: "unsigned short"}  # the type in which a row is copied, by its bytes
IDS = {"int32": "int", "int64": "long long"}
THREADS = 256
CHUNK = 64  # sorted ids whose rows are summed one after the other, as in embedding.cu
SUM_THREADS = 128
INSTANTIATIONS = (
    *_cuda.instantiations("embedding_rows", IDS.values(), types=UNITS.values()),
    *_cuda.instantiations("sum_continued"),
    *_cuda.instantiations("sum_runs"),
)
KERNELS = _cuda.Source(__file__, "embedding.cu", INSTANTIATIONS)


def embedding(input, weight):
    """Return (*shape of the ids, dim); rows of NaN for ids outside the (num_embeddings, dim) weight."""
    xp = _cuda.array_module(weight)
    table_rows, dim = weight.shape
    output = xp.empty((*input.shape, dim), weight.dtype)
    if output.size == 0:
        return output
    ids = xp.ascontiguousarray(input if input.dtype.name in IDS else input.astype(np.int64))
    table = xp.ascontiguousarray(weight)
    row_bytes = dim * table.dtype.itemsize
    wide = row_bytes % 16 == 0 and _cuda.is_aligned(table) and _cuda.is_aligned(output)
    unit_bytes = 16 if wide else table.dtype.itemsize
    units = row_bytes // unit_bytes
    across = min(32, 1 << math.ceil(math.log2(units)))
    down = THREADS // across
    kernel = _cuda.template("embedding_rows", UNITS[unit_bytes], IDS[ids.dtype.name])
    args = (ids, table, output, np.int64(ids.size), np.int32(units), np.int64(table_rows))
    KERNELS.launch(kernel, (-(-ids.size // down),), (across, down), args)
    return output


def embedding_backward(grad_output, input, num_embeddings, add_to):
    """Return the gradient of the (num_embeddings, dim) weight, added to the array `add_to` if that is not None.

    The ids are sorted, equal ones in their order: blocks sum fixed numbers of rows, then one block sums each distinct
    id, so that no order depends on the schedule. Ids outside the table are ignored.
    """
    xp, dim = _cuda.array_module(grad_output), grad_output.shape[-1]
    output = xp.zeros((num_embeddings, dim), grad_output.dtype) if add_to is None else add_to
    if not grad_output.size or not num_embeddings:
        return output
    ids = xp.ascontiguousarray(input).reshape(-1).astype(np.int64)
    order = xp.argsort(ids, kind="stable")
    sorted_ids, chunks = ids[order], -(-ids.size // CHUNK)
    partials = xp.empty((chunks, dim), np.float32)
    arrays = xp.ascontiguousarray(grad_output), order, sorted_ids, partials
    numbers = np.int64(ids.size), np.int32(dim)
    c_name = _cuda.c_type(grad_output.dtype)
    KERNELS.launch(_cuda.template("sum_continued", c_name), (chunks,), (SUM_THREADS,), (*arrays, *numbers))
    args = (*arrays, output, *numbers, np.int64(num_embeddings))
    KERNELS.launch(_cuda.template("sum_runs", c_name), (ids.size,), (SUM_THREADS,), args)
    return output
