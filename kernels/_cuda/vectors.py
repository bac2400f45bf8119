"""Rows of an array in memory: as whole 16-byte vectors on 16-byte boundaries, and threads for vectors."""

VECTOR_BYTES = 16
WIDE = 4096  # columns (a vocabulary's) from which padding between rows costs less than unaligned rows
COLUMNS, ROWS = 32, 8  # threads of a block with a vector each: across, VECTOR_COLUMNS in common.cuh, and down


def padded_width(width, dtype):
    """Return `width` elements rounded up to whole vectors."""
    per_vector = VECTOR_BYTES // dtype.itemsize
    return -(-width // per_vector) * per_vector


def pad_rows(xp, array):
    """Return a C-contiguous copy of `array` whose last axis is padded with zeros to whole vectors."""
    width = array.shape[-1]
    padded = xp.zeros((*array.shape[:-1], padded_width(width, array.dtype)), dtype=array.dtype)
    padded[..., :width] = array
    return padded


def empty_rows(xp, rows, width, dtype):
    """Return an uninitialised (rows, width) array; WIDE rows begin on vector boundaries, so they may lie apart.

    cuBLASLt's fast products and copies of 16 bytes need that.
    """
    if width < WIDE:
        return xp.empty((rows, width), dtype)
    return xp.empty((rows, padded_width(width, dtype)), dtype)[:, :width]


def unit_columns(xp, array):
    """Return the array if neighbours in a row are neighbours in memory, else a contiguous copy."""
    itemsize = array.dtype.itemsize
    if (array.shape[1] <= 1 or array.strides[1] == itemsize) and array.strides[0] % itemsize == 0:
        return array
    return xp.ascontiguousarray(array)


def row_stride(array):
    """Return the number of elements from row to row."""
    return array.strides[0] // array.dtype.itemsize


def has_vector_rows(array, address):
    """Return whether the last axis is contiguous, fills whole vectors, and always starts on a vector boundary."""
    itemsize = array.dtype.itemsize
    steps = [stride for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    contiguous = array.strides[-1] == itemsize or array.shape[-1] <= 1
    whole = array.shape[-1] * itemsize % VECTOR_BYTES == 0
    return contiguous and whole and all(offset % VECTOR_BYTES == 0 for offset in (address, *steps))


def vector_grid(rows, width, itemsize):
    """Return (grid, block) of a kernel with a thread for each vector of each row (VectorOfRow in common.cuh)."""
    return (-(-rows // ROWS), -(-width * itemsize // (COLUMNS * VECTOR_BYTES))), (COLUMNS, ROWS)
