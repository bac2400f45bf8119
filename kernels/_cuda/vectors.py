"""Rows as whole 16-byte vectors on 16-byte boundaries, as kernels that copy tiles want them; threads for vectors."""

VECTOR_BYTES = 16
WIDE = 4096  # columns from which the loss of unaligned rows is worth memory between them: a vocabulary's
COLUMNS, ROWS = 32, 8  # threads of a block with a vector each: across, VECTOR_COLUMNS in common.cuh, and down


def padded_width(width, dtype):
    """`width` elements rounded up to whole vectors."""
    per_vector = VECTOR_BYTES // dtype.itemsize
    return -(-width // per_vector) * per_vector


def pad_rows(xp, array):
    """A C-contiguous copy of `array` whose last axis has grown to whole vectors, filled up with zeros."""
    width = array.shape[-1]
    padded = xp.zeros((*array.shape[:-1], padded_width(width, array.dtype)), dtype=array.dtype)
    padded[..., :width] = array
    return padded


def empty_rows(xp, rows, width, dtype):
    """(rows, width), uninitialised. Where rows are WIDE each begins on a vector boundary, so that they may lie apart:
    cuBLASLt's fast products and copies of 16 bytes want that."""
    if width < WIDE:
        return xp.empty((rows, width), dtype)
    return xp.empty((rows, padded_width(width, dtype)), dtype)[:, :width]


def unit_columns(xp, array):
    """The array itself where neighbours in a row are neighbours in memory, else a contiguous copy."""
    itemsize = array.dtype.itemsize
    if (array.shape[1] <= 1 or array.strides[1] == itemsize) and array.strides[0] % itemsize == 0:
        return array
    return xp.ascontiguousarray(array)


def row_stride(array):
    """Elements from row to row."""
    return array.strides[0] // array.dtype.itemsize


def has_vector_rows(array, address):
    """Whether the last axis is contiguous, fills whole vectors, and starts on a vector boundary everywhere."""
    itemsize = array.dtype.itemsize
    steps = [stride for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    contiguous = array.strides[-1] == itemsize or array.shape[-1] <= 1
    whole = array.shape[-1] * itemsize % VECTOR_BYTES == 0
    return contiguous and whole and all(offset % VECTOR_BYTES == 0 for offset in (address, *steps))


def vector_of_row_plan(rows, width, itemsize):
    """(grid, block) of a kernel that has a thread for each vector of each row (VectorOfRow in common.cuh)."""
    return (-(-rows // ROWS), -(-width * itemsize // (COLUMNS * VECTOR_BYTES))), (COLUMNS, ROWS)
