"""Affine map on the CPU: a blocked matrix product over packed weights, with bias, activation and residual fused in.

The weight is packed once into panels (see _numba/panels.py). A task is a block of up to BLOCK_ROWS rows of the input
times one panel. Its sums stay in a scratch block that fits the first cache levels; each tile of them is written to the
output once, on the way through bias, activation and residual. The order of each element's sum depends on in_features
alone.

Measured on a Zen 5 (AVX-512, float32) as a share of what the tile reaches on operands in registers: 93-97 % on one core
at 16 to 1024 rows and BERT-base's widths (76-90 % without the prefetch of the output's lines), 92 % on two at
(1024, 768) x (768, 3072), which is twice what NumPy's OpenBLAS makes of it.
"""

import numpy as np
from numba import prange

from .._numba import LEVEL, aligned_empty, as_kernel_array, helper, kernel, num_threads
from .._numba.panels import pack_panel
from .._numba.pointwise import CODES, activate_backward, activation_function, add_lines
from .._numba.rows import BLOCK_ROWS as SUM_ROWS
from .._numba.rows import block_count, share, sum_blocks
from .._numba.simd import (
    first_lanes,
    lanes,
    load,
    load_masked,
    pointer,
    pointer_at,
    prefetch_write,
    store_masked,
)
from .._numba.tasks import take_task
from .._numba.tile import make_tile

NO_ACTIVATION = -1
# The sums of the largest tile, a row of the panel and a broadcast fit the vector registers.
TILE_ROWS, TILE_VECTORS = (8, 3) if LEVEL.registers >= 32 else (4, 3)
BLOCK_ROWS = 128
BLOCK_DEPTH = 48  # vectors: 768 float32 with AVX-512, when a block of a panel takes 150 KB of the second-level cache

_HALF_ROWS = TILE_ROWS // 2
_full_tile = make_tile(TILE_ROWS, TILE_VECTORS)
_half_tile = make_tile(_HALF_ROWS, TILE_VECTORS)
_row_tile = make_tile(1, TILE_VECTORS)


class PackedWeight:
    """A weight as panels, (panels, in_features, panel width), the last one filled up with whatever."""

    def __init__(self, weight):
        self.panels = _pack(weight, _panel_width(weight.dtype))
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype

    def to_array(self):
        """The weight as it was given, (out_features, in_features)."""
        count, depth, width = self.panels.shape
        rows = self.panels.transpose(0, 2, 1).reshape(count * width, depth)
        return np.array(rows[: self.out_features], order="C")


def prepare_weight(weight):
    """Pack an (out_features, in_features) weight of any strides."""
    return PackedWeight(weight)


def linear(input, weight, bias, activation, residual):
    """activation(input @ weight.T + bias) + residual, (rows, out_features)."""
    panels = weight.panels if isinstance(weight, PackedWeight) else _pack(weight, _panel_width(weight.dtype))
    out_features = weight.out_features if isinstance(weight, PackedWeight) else weight.shape[0]
    rows = input if _has_unit_columns(input) else as_kernel_array(input)
    row_stride = rows.strides[0] // rows.itemsize
    strides = (row_stride, 1, row_stride * _group_rows(rows.dtype))
    return _multiply(rows, strides, input.shape[0], panels, out_features, bias, activation, residual)


def linear_backward(grad_output, input, weight, bias, activation):
    """(grad_input, grad_weight, grad_bias or None)."""
    grad = grad_output
    if activation is not None:
        grad, _ = activate_backward(grad, linear(input, weight, bias, None, None), activation, None)
    array = weight.to_array() if isinstance(weight, PackedWeight) else weight
    grad_input = linear(grad, array.T, None, None, None)
    return grad_input, _product_of_columns(grad, input), None if bias is None else _sum_rows(grad)


def _product_of_columns(a, b):
    """a.T @ b for a (rows, m) and b (rows, n): both are packed, the panels of a serving as rows of the product."""
    group = _group_rows(a.dtype)
    rows, columns = _pack(a.T, group), _pack(b.T, _panel_width(b.dtype))
    return _multiply(rows, (1, group, a.shape[0] * group), a.shape[1], columns, b.shape[1], None, None, None)


def _panel_width(dtype):
    return TILE_VECTORS * LEVEL.vector_bytes // dtype.itemsize


def _group_rows(dtype):
    """Rows of one group of the left operand: whole tiles, and whole vectors so that they can be packed."""
    return max(TILE_ROWS, LEVEL.vector_bytes // dtype.itemsize)


def _sum_rows(grad):
    rows, columns = grad.shape
    total, partial = np.zeros(columns, grad.dtype), np.zeros((block_count(rows), columns), grad.dtype)
    if grad.size:
        _sum_row_blocks(as_kernel_array(grad), partial, total, num_threads())
    return total


def _has_unit_columns(matrix):
    return matrix.flags.aligned and matrix.strides[1] == matrix.itemsize and matrix.strides[0] % matrix.itemsize == 0


def _pack(matrix, width):
    """The panels, `width` wide, of the transpose of a (columns, depth) matrix."""
    if not matrix.flags.aligned:
        matrix = as_kernel_array(matrix)
    columns, depth = matrix.shape
    panels = aligned_empty((-(-columns // width), depth, width), matrix.dtype)
    column_stride, depth_stride = (stride // matrix.itemsize for stride in matrix.strides)
    if panels.size:
        _pack_panels(matrix.ctypes.data, column_stride, depth_stride, columns, panels, num_threads())
    return panels


def _multiply(a, strides, rows, panels, columns, bias, activation, residual):
    """activation(a @ panels + bias) + residual; `strides` as the kernel takes them."""
    output = np.empty((rows, columns), panels.dtype)
    if panels.shape[1] == 0:  # an empty sum: one term of zero
        a, strides = np.zeros(1, panels.dtype), (0, 0, 0)
        panels = np.zeros((panels.shape[0], 1, panels.shape[2]), panels.dtype)
    bias, residual = (None if array is None else as_kernel_array(array) for array in (bias, residual))
    finish = (_address(bias), _address(residual), NO_ACTIVATION if activation is None else CODES[activation])
    if output.size:
        _product((_address(a), *strides), panels, output, finish, np.zeros(1, np.int64), num_threads())
    return output


def _address(array):
    return 0 if array is None else array.ctypes.data


# --- kernels ----------------------------------------------------------------------------------------


@kernel(parallel=True)
def _pack_panels(address, column_stride, depth_stride, columns, panels, threads):
    count, depth, width = panels.shape
    for thread in prange(threads):
        for p in range(share(count, thread, threads), share(count, thread + 1, threads)):
            source = pointer(pointer_at(address, panels), p * width * column_stride)
            target = pointer(panels, p * depth * width)
            pack_panel(source, column_stride, depth_stride, columns - p * width, depth, target, width)


@kernel(parallel=True)
def _product(a, panels, output, finish, counter, threads):
    """output = activation(a @ panels + bias) + residual.

    `a` is (address, row stride, column stride, group stride): rows come in groups of n (`_group_rows`), and
    element (i, k) lies at i // n * group + i % n * row + k * column. `finish` is the addresses of bias and
    residual (0 if absent) and the activation's code. `counter` hands out the tasks.
    """
    for _ in prange(threads):
        _run_tasks(a, panels, output, finish, counter)


@helper
def _run_tasks(a, panels, output, finish, counter):
    count, width = panels.shape[0], panels.shape[2]
    rows = output.shape[0]
    blocks = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    sums = np.empty(BLOCK_ROWS * width, panels.dtype)
    task = take_task(counter)
    while task < blocks * count:
        block = task // count
        first, last = share(tiles, block, blocks) * TILE_ROWS, min(rows, share(tiles, block + 1, blocks) * TILE_ROWS)
        _multiply_block(a, first, last, panels, task % count, output, finish, sums)
        task = take_task(counter)


@helper
def _multiply_block(a, first, last, panels, p, output, finish, sums):
    """The rows from first to last, times panel p."""
    address, row, column, group = a
    depth, width = panels.shape[1:]
    step = BLOCK_DEPTH * lanes(panels)
    n = max(TILE_ROWS, lanes(panels))
    for k in range(0, depth, step):
        part = min(step, depth - k)
        panel = pointer(panels, (p * depth + k) * width)
        for i in range(first, last, TILE_ROWS):
            count = min(TILE_ROWS, last - i)
            x = pointer(pointer_at(address, panels), i // n * group + i % n * row + k * column)
            tile = pointer(sums, (i - first) * width)
            if k + part == depth:
                _prefetch_tile(output, i, count, p * width, width)
            _multiply_tile(x, row, column, count, panel, part, tile, k > 0)
            if k + part == depth:
                _finish_tile(tile, width, output, i, count, p * width, finish)


@helper
def _multiply_tile(a, row, column, count, panel, depth, sums, accumulate):
    """sums (+)= the product of `count` rows of a with a block of a panel."""
    width = TILE_VECTORS * lanes(panel)
    if count > _HALF_ROWS:
        _full_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate)
    elif count > 1:
        _half_tile(a, row, column, count - 1, panel, width, depth, sums, width, accumulate)
    else:
        _row_tile(a, row, column, 0, panel, width, depth, sums, width, accumulate)


@helper
def _prefetch_tile(output, first, count, column, width):
    for i in range(first, first + count):
        for j in range(column, column + width, lanes(output)):
            prefetch_write(output, i * output.shape[1] + j)


@helper
def _finish_tile(sums, width, output, first, count, column, finish):
    """Send `count` rows of sums through bias, activation and residual to the output."""
    bias, residual, activation = finish
    columns = output.shape[1]
    for i in range(count):
        for j in range(column, min(column + width, columns), lanes(sums)):
            mask = first_lanes(sums, columns - j)
            at = (first + i) * columns + j
            value = load(sums, i * width + j - column)
            if bias != 0:
                value += load_masked(pointer_at(bias, sums), j, mask, 0.0)
            if activation != NO_ACTIVATION:
                value = activation_function(activation, value)
            if residual != 0:
                value += load_masked(pointer_at(residual, sums), at, mask, 0.0)
            store_masked(output, at, value, mask)


@kernel(parallel=True)
def _sum_row_blocks(grad, partial, total, threads):
    blocks, columns = partial.shape
    for thread in prange(threads):
        for block in range(share(blocks, thread, threads), share(blocks, thread + 1, threads)):
            sums = pointer(partial, block * columns)
            for row in range(block * SUM_ROWS, min((block + 1) * SUM_ROWS, len(grad))):
                add_lines(sums, pointer(grad, row * columns), sums, columns)
    sum_blocks(partial, total)
