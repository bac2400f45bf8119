"""Affine map on the CPU: a blocked product with packed weights, fused with bias, activation and residual.

The weight is packed once into panels (_numba/products). In low precision the rows of the input are rounded first, in a
parallel region of their own, to a copy of half or a quarter of their size.
"""

import copy

import numpy as np

from ..._numba import (
    LEVEL,
    aligned_empty,
    as_addressed_array,
    as_kernel_array,
    empty,
    helper,
    kernel,
    lasting_empty,
    num_threads,
    parallel_kernel,
    region,
)
from ..._numba.compile.isa import WORD_BYTES
from ..._numba.low_precision import (
    ROUNDED,
    round_row,
    rows_of_bfloat16,
    rows_of_bytes,
    store_nearest_bfloat16,
    whole_depth,
)
from ..._numba.products import WEIGHT_PANEL_VECTORS, make_scratch, run_product
from ..._numba.products.epilogue import epilogue_pointers
from ..._numba.products.panels import pack_groups, pack_panel, prefetch_rows, unpack_groups
from ..._numba.products.tile import group_rows
from ..._numba.rows import BLOCK_ROWS, add_lines, block_count, share, sum_blocks, task_count
from ..._numba.simd import first_lanes, lanes, load_masked, pointer, pointer_at, wide_pointer
from ...activation_names import NO_ACTIVATION, activation_code
from ...arrays import bfloat16
from ..prepared import PreparedWeight, is_grouped
from .low_precision import (
    GROUP_ROWS,
    HAS_PAIRS,
    PANEL_WORDS,
    code_of_rounded,
    pack_columns,
    quantize_rows,
    round_rows,
    run_bfloat16,
    run_int8,
    transposed_pairs,
)
from .weight_gradient import product_of_columns

ROUNDING_GRAIN = 1 << 16
_WORD = np.dtype(f"f{WORD_BYTES}")  # whose patterns hold words of low precision


class PackedWeight(PreparedWeight):
    """A weight as panels, (panels, depth in words, panel width in elements), the last one padded with arbitrary values.

    A word is a float, or WORD_BYTES of bfloat16 (as uint16) or int8, neighbours along in_features, which are padded
    with zeros.
    int8 weights also have the scale and the sum of each column of the panels, and the factors of the input's columns
    (perhaps an empty array).
    """

    backend = "numba"

    def __init__(self, weight, scale=None, input_scale=None, make=aligned_empty):
        super().__init__(weight, scale, input_scale)
        self._transpose = None
        is_low = weight.dtype.itemsize < 4
        words = _words(weight)
        self._words = _pack(words, PANEL_WORDS if is_low else _panel_width(words.dtype), make)
        self.panels = self._words
        if is_low:
            self.panels = self._words.view(np.int8 if scale is not None else np.uint16)
        self.column_scales = self.column_sums = None
        self.input_factors = np.array([] if input_scale is None else input_scale, np.float32)
        if scale is not None:
            columns = self._words.shape[0] * self._words.shape[2]
            self.column_scales, self.column_sums = np.zeros(columns, np.float32), np.zeros(columns, np.int32)
            self.column_scales[: len(scale)] = scale
            self.column_sums[: len(scale)] = weight.sum(axis=1, dtype=np.int32)

    def transposed_panels(self):
        """Return the panels of the transpose, which the first backward makes."""
        if self._transpose is None:
            if self.dtype.itemsize < 4:
                self._transpose = self._transposed_words()
            else:
                self._transpose = _transpose(self.panels, self.out_features, self.in_features)
        return self._transpose

    def _transposed_words(self):
        if HAS_PAIRS:
            return transposed_pairs(self.panels, *self.shape)
        return _pack(_words_of_rows(self._stored().view(np.uint16)).T, PANEL_WORDS).view(np.uint16)

    def _split(self, shares):
        width = self.panels.shape[2] * min(self.panels.itemsize, 4) // 4
        if any(rows.stop % width for rows in shares):  # panels that two would have in common
            return super()._split(shares)
        return [self._share(rows, slice(rows.start // width, rows.stop // width)) for rows in shares]

    def _share(self, rows, panels):
        """Return the weight of these rows, whose panels are a view."""
        share = copy.copy(self)
        share.out_features, share._parts, share._transpose = rows.stop - rows.start, [], None
        share.panels = self.panels[panels]
        if not self.is_grouped:
            share._words = self._words[panels]
            if self.column_scales is not None:
                share.column_scales, share.column_sums = self.column_scales[rows], self.column_sums[rows]
                share._scale = self._scale[rows]
        return share

    def _stored(self):
        count, depth, width = self._words.shape
        rows = np.ascontiguousarray(self._words.transpose(0, 2, 1)).reshape(count * width, depth)
        return np.array(rows.view(self.dtype)[: self.out_features, : self.in_features], order="C")


class GroupedWeight(PackedWeight):
    """An int8_weight_only weight, whose panels alone hold its values and scales."""

    column_scales = column_sums = None

    def __init__(self, weight, scale):
        PreparedWeight.__init__(self, weight)
        self.is_grouped = True
        self.panels = pack_groups(weight, scale, _panel_width(np.dtype(np.float32)))

    @property
    def scale(self):
        scale = unpack_groups(self.panels, *self.shape)[1].view(bfloat16())
        scale.flags.writeable = False
        return scale

    def _stored(self):
        return unpack_groups(self.panels, *self.shape)[0]


def prepare_weight(weight, scale, input_scale):
    """Pack an (out_features, in_features) weight of any strides.

    With int8 `scale` is (out_features,) float32 and `input_scale` (in_features,) or None; in groups `scale` is
    (out_features, groups) bfloat16.
    """
    return (
        GroupedWeight(weight, scale) if is_grouped(scale) else PackedWeight(weight, scale, input_scale, lasting_empty)
    )


def round_weight(weight):
    """Return the weight rounded to bfloat16."""
    if weight.dtype != np.float32:
        return weight.astype(bfloat16())
    rounded = empty(weight.shape, np.uint16)
    tasks = task_count(weight.size, ROUNDING_GRAIN)
    _round_weight(as_kernel_array(weight).reshape(-1), rounded.reshape(-1), tasks)
    return rounded.view(bfloat16())


def linear(input, weight, bias, activation, residual):
    """Return activation(input @ weight.T + bias) + residual, (rows, out_features)."""
    packed = weight if isinstance(weight, PackedWeight) else PackedWeight(weight)
    if packed.is_grouped:
        return _multiply_rows(input, packed.panels, packed.out_features, bias, activation, residual)
    if packed.dtype == np.int8:
        return _multiply_quantized(as_kernel_array(input), packed, bias, activation, residual)
    if packed.dtype.itemsize < 4:
        return _multiply_rounded(input, packed.panels, packed.out_features, bias, activation, residual)
    return _multiply_rows(input, packed.panels, packed.out_features, bias, activation, residual)


def linear_backward(grad_output, input, weight, bias, needs_weight, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None); `dtype` is the input's."""
    is_packed = isinstance(weight, PackedWeight)
    panels = weight.transposed_panels() if is_packed else PackedWeight(weight.T).panels
    multiply, product = _multiply_rows, product_of_columns
    if panels.itemsize < 4:
        multiply = _multiply_rounded
        product = product_of_columns if ROUNDED is np.float32 else _product_of_rounded_columns
    grad_input = multiply(grad_output, panels, weight.shape[1], None, None, None)
    del panels  # so that their memory can serve the gradient of an unpacked weight
    if needs_weight:
        return grad_input, *product(grad_output, input, bias is not None)
    return grad_input, None, None if bias is None else _sum_rows(grad_output)


def linear_weight_gradient(grad_output, input, dtype, add_to):
    """Return grad_output.T @ input, or add it to the array `add_to`; `dtype` is the input's."""
    product, _ = product_of_columns(grad_output, input, False)
    if add_to is None:
        return product
    add_to += product
    return add_to


def _product_of_rounded_columns(a, b, needs_sums):
    """Return (a.T @ b, the sums of the columns of a or None) for float32 a (rows, m) and b (rows, n).

    The product rounds both to bfloat16. The columns of both are packed as words, those of a as rows of the product.
    """
    sums, output = _sum_rows(a) if needs_sums else None, empty((a.shape[1], b.shape[1]), np.float32)
    if output.size:
        rows, panels = _pack_columns(a, GROUP_ROWS, as_strips=True), _pack_columns(b, PANEL_WORDS)
        epilogue, tasks = _epilogue(None, None, NO_ACTIVATION, output), _tasks(panels, len(output))
        if LEVEL.tiles:
            _product_of_strips(rows.reshape(-1, 2 * rows.shape[1]), panels, output, epilogue, *tasks)
        else:
            _product(rows.reshape(-1), (1, GROUP_ROWS, rows.shape[1] * GROUP_ROWS), panels, output, epilogue, *tasks)
    return output, sums


def _pack_columns(x, width, as_strips=False):
    """Return the columns of float32 x as panels of bfloat16, or as strips (see `pack_columns`)."""
    if HAS_PAIRS:
        return pack_columns(x, width, as_strips)
    return _pack(_words_of_rows(_rounded(x)).T, width).view(np.uint16)


def _rounded(x):
    """Return float32 rows rounded to bfloat16."""
    x, rounded = as_kernel_array(x), empty(x.shape, ROUNDED)
    if x.size:
        _round_rows(x, rounded, num_threads())
    return rounded


def _words_of_rows(bits):
    """Return words, patterns of floats, of neighbours in a column of uint16 (rows, n): (words, n), at least one word.

    Zeros pad the last word.
    """
    rows, columns = bits.shape
    size = WORD_BYTES // 2
    words = np.zeros((max(-(-rows // size), 1), columns, size), np.uint16)
    for i in range(size):
        own = bits[i::size]
        words[: len(own), :, i] = own
    return words.reshape(len(words), size * columns).view(_WORD)


def _words(weight):
    """Return (columns, depth) as words: floats as they are, smaller types as patterns of floats."""
    columns, depth = weight.shape
    is_low = weight.itemsize < 4
    whole = whole_depth(depth, weight.itemsize) if is_low else max(depth, 1)
    if whole > depth:
        weight = np.concatenate([weight, np.zeros((columns, whole - depth), weight.dtype)], axis=1)
    return np.ascontiguousarray(weight).view(_WORD) if is_low else weight


def _panel_width(dtype):
    return WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // dtype.itemsize


def _sum_rows(grad):
    rows, columns = grad.shape
    total, partial = np.zeros(columns), np.zeros((block_count(rows), columns), grad.dtype)
    if grad.size:
        _sum_row_blocks(as_kernel_array(grad), partial, total, num_threads())
    return total.astype(grad.dtype, copy=False)


def _pack(matrix, width, make=aligned_empty):
    """Return the panels, `width` wide, of the transpose of a (columns, depth) matrix; `make` gives their memory."""
    matrix = as_addressed_array(matrix, unit_columns=False)
    columns, depth = matrix.shape
    panels = make((-(-columns // width), depth, width), matrix.dtype)
    column_stride, depth_stride = (stride // matrix.itemsize for stride in matrix.strides)
    if panels.size:
        _pack_panels(matrix.ctypes.data, column_stride, depth_stride, columns, panels, num_threads())
    return panels


def _transpose(panels, out_features, in_features):
    """Return the panels of the transpose of a weight with these panels."""
    width = panels.shape[2]
    transpose = aligned_empty((-(-in_features // width), max(out_features, 1), width), panels.dtype)
    if out_features:
        _transpose_panels(panels, out_features, in_features, transpose, num_threads())
    else:
        transpose[...] = 0  # the sums over no feature at all
    return transpose


def _multiply_rows(a, panels, columns, bias, activation, residual):
    """Return activation(a @ panels + bias) + residual of floats."""
    rows = as_kernel_array(a if a.shape[1] else np.zeros((len(a), 1), a.dtype))
    depth = rows.shape[1]
    strides = depth, 1, depth * group_rows(rows.itemsize)
    return _multiply(rows, strides, len(a), panels, columns, bias, activation, residual, rows.dtype)


def _multiply(a, strides, rows, panels, columns, bias, activation, residual, dtype):
    """Return activation(a @ panels + bias) + residual in `dtype`; `strides` as for `run_product`."""
    output = empty((rows, columns), dtype)
    if output.size:
        epilogue = _epilogue(bias, residual, activation_code(activation), output)
        _product(a.reshape(-1), strides, panels, output, epilogue, *_tasks(panels, len(output)))
    return output


def _multiply_rounded(x, panels, columns, bias, activation, residual):
    """Return activation(rounded x @ panels + bias) + residual for float32 x and panels of bfloat16.

    If the panels are widened x is not rounded.
    """
    if ROUNDED is np.float32:
        return _multiply_rows(x, panels, columns, bias, activation, residual)
    output = empty((len(x), columns), np.float32)
    if output.size:
        rounded = rows_of_bfloat16(empty, *x.shape).rows
        epilogue = _epilogue(bias, residual, code_of_rounded(activation), output)
        _product_bfloat16(as_kernel_array(x), rounded, panels, output, epilogue, *_tasks(panels, len(output)))
    return output


def _multiply_quantized(x, packed, bias, activation, residual):
    """Return activation(rounded x @ panels + bias) + residual for float32 x and a weight of int8."""
    output = empty((len(x), packed.out_features), np.float32)
    if output.size:
        rounded = tuple(rows_of_bytes(empty, *x.shape))
        weight = packed.panels, packed.column_scales, packed.column_sums
        epilogue = _epilogue(bias, residual, code_of_rounded(activation), output)
        _product_int8(x, packed.input_factors, rounded, weight, output, epilogue, *_tasks(packed.panels, len(output)))
    return output


def _epilogue(bias, residual, code, output):
    """Return bias and residual (empty if absent) and the activation's code, for the kernels."""
    bias = np.empty(0, output.dtype) if bias is None else as_kernel_array(bias)
    residual = np.empty((0, 0), output.dtype) if residual is None else as_kernel_array(residual)
    return bias, residual, code


def _tasks(panels, rows):
    """Return a counter for `run_product`, scratch for each thread, and the number of threads."""
    threads = num_threads()
    return np.array([0, threads], np.int64), make_scratch(panels.dtype, threads, rows), threads


# --- kernels ----------------------------------------------------------------------------------------


@parallel_kernel
def _pack_panels(address, column_stride, depth_stride, columns, panels, task, tasks):
    count, depth, width = panels.shape
    for p in range(share(count, task, tasks), share(count, task + 1, tasks)):
        source = pointer(pointer_at(address, panels), p * width * column_stride)
        target = pointer(panels, p * depth * width)
        pack_panel(source, column_stride, depth_stride, columns - p * width, depth, target, width)


@parallel_kernel
def _transpose_panels(panels, out_features, in_features, transpose, task, tasks):
    count, _, width = transpose.shape
    for q in range(share(count, task, tasks), share(count, task + 1, tasks)):
        for first in range(0, out_features, width):
            source = pointer(panels, first * panels.shape[1] + q * width * width)
            target = pointer(transpose, (q * out_features + first) * width)
            columns, depth = in_features - q * width, min(width, out_features - first)
            # The blocks lie far apart: prefetching them takes 25 % less time.
            prefetch_rows(pointer(source, width * panels.shape[1]), width, 0, width, width)
            pack_panel(source, width, 1, columns, depth, target, width)


@parallel_kernel
def _product(a, strides, panels, output, epilogue, counter, scratch, task, tasks):
    run_floats(a, strides, panels, output, epilogue, counter, scratch[task])


@helper
def run_floats(a, strides, panels, output, epilogue, counter, sums):
    run_product(a, strides, panels, output, epilogue_pointers(epilogue), None, counter, sums)


@kernel(regions=True)
def _product_bfloat16(x, rounded, panels, output, epilogue, counter, scratch, tasks):
    _round(x, rounded, tasks)
    _multiply_bfloat16(rounded, panels, output, epilogue, counter, scratch, tasks)


@parallel_kernel
def _round_weight(weight, rounded, task, tasks):
    for i in range(share(len(weight), task, tasks), share(len(weight), task + 1, tasks), lanes(weight)):
        inside = first_lanes(weight, share(len(weight), task + 1, tasks) - i)
        store_nearest_bfloat16(pointer(rounded, 0), i, load_masked(weight, i, inside, 0.0), inside)


@parallel_kernel
def _round_rows(x, rounded, task, tasks):
    width = x.shape[1]
    for i in range(share(len(x), task, tasks), share(len(x), task + 1, tasks)):
        round_row(wide_pointer(x, i * width), width, pointer(rounded, i * width), width)


@parallel_kernel
def _product_of_strips(rounded, panels, output, epilogue, counter, scratch, task, tasks):
    run_bfloat16(rounded, panels, output, epilogue, counter, scratch[task])


@region
def _round(x, rounded, task, tasks):
    round_rows(x, rounded, share(len(x), task, tasks), share(len(x), task + 1, tasks))


@region
def _multiply_bfloat16(rounded, panels, output, epilogue, counter, scratch, task, tasks):
    run_bfloat16(rounded, panels, output, epilogue, counter, scratch[task])


@kernel(regions=True)
def _product_int8(x, factors, rounded, weight, output, epilogue, counter, scratch, tasks):
    """Compute the product of x, with factors of its columns (or none).

    `rounded` is memory for (levels, zeros, steps) of its rows, `weight` (panels, scales, sums) of its columns.
    """
    _quantize(x, factors, rounded, tasks)
    _multiply_int8(rounded, weight, output, epilogue, counter, scratch, tasks)


@region
def _quantize(x, factors, rounded, task, tasks):
    quantize_rows(x, factors, rounded, share(len(x), task, tasks), share(len(x), task + 1, tasks))


@region
def _multiply_int8(rounded, weight, output, epilogue, counter, scratch, task, tasks):
    run_int8(rounded, weight, output, epilogue, counter, scratch[task])


@kernel(regions=True)
def _sum_row_blocks(grad, partial, total, tasks):
    _sum_within_blocks(grad, partial, tasks)
    sum_blocks(partial, total)


@region
def _sum_within_blocks(grad, partial, task, tasks):
    blocks, columns = partial.shape
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        sums = pointer(partial, block * columns)
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(grad))):
            add_lines(sums, pointer(grad, row * columns), sums, columns)
