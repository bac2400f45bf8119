"""Launching sums down columns (column_sums.cuh)."""

import numpy as np

from . import C_TYPES, array_module, c_type
from .vectors import row_stride, unit_columns

COLUMNS, LANES, CHUNK = 32, 8, 128  # as in column_sums.cuh
BLOCK = (COLUMNS, LANES)
FINAL = tuple(f"sum_columns<float, {c_name}>" for c_name in C_TYPES.values())
INSTANTIATIONS = tuple(dict.fromkeys((*FINAL, *(f"sum_columns<{c_name}, float>" for c_name in C_TYPES.values()))))


def grid(rows, width):
    """The grid of a kernel that sums chunks of CHUNK rows."""
    return -(-rows // CHUNK), -(-width // COLUMNS)


def launch(module, rows, dtype):
    """(width,) of `dtype`: the sums of the (rows, width) array over its rows."""
    xp = array_module(rows)
    count, width = rows.shape
    chunks, across = grid(count, width)
    if not width or not count:
        return xp.zeros(width, dtype)
    partials = xp.empty((chunks, width), np.float32)
    rows = unit_columns(xp, rows)
    args = (rows, partials, np.int64(row_stride(rows)), np.int64(count), np.int32(width), np.int64(CHUNK))
    module.launch(f"sum_columns<{c_type(rows.dtype)}, float>", (chunks, across), BLOCK, args)
    return finish(module, partials, dtype)


def finish(module, partials, dtype):
    """(width,) of `dtype`: the sums of (chunks, width) float32 partial sums, in their order."""
    xp = array_module(partials)
    chunks, width = partials.shape
    output = xp.empty(width, dtype)
    args = (partials, output, np.int64(width), np.int64(chunks), np.int32(width), np.int64(chunks))
    module.launch(f"sum_columns<float, {c_type(dtype)}>", grid(1, width), BLOCK, args)
    return output
