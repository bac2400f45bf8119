"""Embedding on CUDA: float32, float16 and bfloat16; the definition is in reference.py.

The ids stay on the GPU, so that they cannot be checked here: an id outside the table gives a row of NaN.
"""

import math

import numpy as np

from .. import _cuda

UNITS = {16: "uint4", 4: "unsigned", 2: "unsigned short"}  # what a row is copied in, by its bytes
IDS = {"int32": "int", "int64": "long long"}
THREADS = 256
KERNELS = _cuda.Module(
    __file__, "embedding.cu", tuple(f"embedding_rows<{unit}, {id}>" for unit in UNITS.values() for id in IDS.values())
)


def embedding(input, weight):
    """Ids of any shape to (*shape of the ids, dim); rows of NaN for ids outside the (num_embeddings, dim) weight."""
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
    kernel = f"embedding_rows<{UNITS[unit_bytes]}, {IDS[ids.dtype.name]}>"
    args = (ids, table, output, np.int64(ids.size), np.int32(units), np.int64(table_rows))
    KERNELS.launch(kernel, (-(-ids.size // down),), (across, down), args)
    return output
