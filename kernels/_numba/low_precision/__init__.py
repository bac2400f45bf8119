"""Rows of float32 rounded to bfloat16 or bytes for products with prepared weights, and the scaling of sums of bytes.

With weights in bfloat16 and int8, products take rows of dtype ROUNDED and QUANTIZED (products/dot.py). Where ROUNDED is
float32, rows are not rounded and weights are widened. In uint16 four quantized values stand in the order 0, 2, 1, 3.
Where instructions take signed bytes, values and zeros are less by `int8_origin`, which leaves the result as it is.

kernels/linear/reference.py has the formulas (`quantize_rows`); these functions give the same bits.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from ..amx.tiles import TILE_ROWS, TILE_WORDS
from ..compile import helper, inline_helper, isa
from ..memory import CACHE_LINE
from ..simd import (
    broadcast,
    first_lanes,
    fma,
    itemsize,
    lanes,
    load,
    load_masked,
    pointer,
    prefetch,
    reduce_add,
    reduce_greatest,
    select,
    wide_pointer,
)
from ..simd.codegen import INT32, Bfloat16, Vec, call_llvm, element_pointer, shuffle

ROUNDED = np.uint16 if isa.LEVEL.bfloat16_dot else np.float32
QUANTIZED = np.uint16 if isa.has_pair_dot() else np.uint8
STEPS = np.float32(254)
_LARGEST, _LEAST_SPAN = np.finfo(np.float32).max, np.finfo(np.float32).tiny * STEPS
_ZERO, _NAN = np.float32(0), np.float32(np.nan)
# Adding it rounds a float32 to an integer, which then stands in the lowest bits.
_ROUNDER = np.float32(1.5 * 2**23)


def _narrow_store(name, doc, forms):
    """Make a masked store of vectors of float32 as another dtype; `forms` has the conversion of their bits by dtype."""

    def store(typingctx, target, index, value, mask):
        dtype = target.dtype if isinstance(target, types.CPointer) else None
        if dtype not in forms or value.dtype != types.float32:
            expected = " or ".join(map(str, forms))
            raise TypingError(f"{name}: expected a pointer to {expected} and float32, got {target} and {value}")
        narrowed = Vec(dtype, value.count)

        def codegen(context, builder, sig, args):
            bits = builder.bitcast(args[2], ir.VectorType(INT32, value.count))
            at = builder.bitcast(element_pointer(context, builder, target, *args[:2]), narrowed.llvm.as_pointer())
            arguments = [forms[dtype](builder, bits, args[2]), at, INT32(dtype.bitwidth // 8), args[3]]
            call_llvm(builder, f"llvm.masked.store.{narrowed.suffix}.p0", ir.VoidType(), arguments)
            return context.get_dummy_value()

        return types.void(target, types.intp, value, mask), codegen

    store.__doc__ = doc
    return intrinsic(store)


def _low_byte(builder, bits, value):
    return builder.trunc(bits, ir.VectorType(ir.IntType(8), bits.type.count))


def _low_byte_of_pairs(builder, bits, value):
    order = [4 * (i // 4) + (0, 2, 1, 3)[i % 4] for i in range(bits.type.count)]
    low = builder.and_(shuffle(builder, bits, bits, order), ir.Constant(bits.type, [0xFF] * bits.type.count))
    return builder.trunc(low, ir.VectorType(ir.IntType(16), bits.type.count))


def _upper_half(builder, bits, value):
    """Return the upper half of the bits, rounded to nearest even; the quiet bit preserves NaN."""

    def constant(integer):
        return ir.Constant(bits.type, [integer] * bits.type.count)

    upper = builder.lshr(bits, constant(16))
    odd = builder.and_(upper, constant(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, builder.or_(upper, constant(0x40)), rounded)


def _nearest_bfloat16(builder, bits, value):
    return builder.trunc(_upper_half(builder, bits, value), ir.VectorType(ir.IntType(16), bits.type.count))


def _bfloat16(builder, bits, value):
    halves = ir.VectorType(ir.IntType(16), bits.type.count)
    if isa.has_native_bfloat16_dot() and isa.IS_ARM:
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(Bfloat16(), halves.count)), halves)
    if isa.has_native_bfloat16_dot() and halves.count == 16:  # flushes denormals, as the products do
        name, rounded = "llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(Bfloat16(), 16)
        return builder.bitcast(call_llvm(builder, name, rounded, [value]), halves)
    return _nearest_bfloat16(builder, bits, value)


store_bfloat16 = _narrow_store(
    "store_bfloat16",
    "Write a vector of float32 rounded to bfloat16, two bytes each, in the mask's lanes.",
    {types.uint16: _bfloat16},
)
store_nearest_bfloat16 = _narrow_store(
    "store_nearest_bfloat16", "As `store_bfloat16`, denormals too on every CPU.", {types.uint16: _nearest_bfloat16}
)
store_low_byte = _narrow_store(
    "store_low_byte",
    "Write the lowest byte of each float32's bits, in the mask's lanes: bytes, or 16 bits with the middle two of four "
    "exchanged.",
    {types.uint8: _low_byte, types.uint16: _low_byte_of_pairs},
)


def _store_words(convert):
    """Make an intrinsic that writes a vector of float32, narrowed, as words of 8 bytes of a row in strips of 8 rows."""

    @intrinsic
    def store(typingctx, target, value):
        def codegen(context, builder, sig, args):
            bits = builder.bitcast(args[1], ir.VectorType(INT32, value.count))
            narrow = convert(builder, bits, args[1])
            count = 64 // narrow.type.element.width
            for first in range(0, value.count, count):
                word = shuffle(builder, narrow, narrow, range(first, first + count))
                at = builder.gep(args[0], [INT32(8 * first)])
                builder.store(word, builder.bitcast(at, word.type.as_pointer()), align=8)
            return context.get_dummy_value()

        return types.void(target, value), codegen

    return store


_store_words_of_bfloat16, _store_words_of_bytes = _store_words(_bfloat16), _store_words(_low_byte)


@intrinsic
def corrected_sums(typingctx, sums, zero, column_sums):
    """Return float32(sums - zero * column_sums) for vectors of int32 and a scalar; the difference is exact."""
    result = Vec(types.float32, sums.count)

    def codegen(context, builder, sig, args):
        sums, zero, column_sums = args
        return builder.sitofp(builder.sub(sums, builder.mul(zero, column_sums)), result.llvm)

    return result(sums, sums, sums), codegen


@helper
def round_row(x, count, target, padded):
    """Write `count` float32 at a pointer as bfloat16 (uint16), and zeros up to `padded`."""
    full = count - count % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        store_bfloat16(target, i, load(x, i), everywhere)
    for i in range(full, padded, lanes(x)):
        value = load_masked(x, i, first_lanes(x, count - i), 0.0)
        store_bfloat16(target, i, value, first_lanes(x, padded - i))


@inline_helper
def _load(row, i):
    """Load a vector of a row, times its factors if there are any."""
    x, factors, has_factors = row
    value = load(x, i)
    if has_factors:
        value *= load(factors, i)
    return value


@inline_helper
def _load_masked(row, i, inside):
    x, factors, has_factors = row
    value = load_masked(x, i, inside, 0.0)
    if has_factors:
        value *= load_masked(factors, i, inside, 0.0)
    return value


@helper
def _limits(row, count):
    """Return minimum and maximum of a row and 0, and whether all its numbers are finite."""
    x = row[0]
    full = count - count % lanes(x)
    low, high, check = broadcast(x, 0.0), broadcast(x, 0.0), broadcast(x, 0.0)
    for i in range(0, full, lanes(x)):
        value = _load(row, i)
        low, high = select(value < low, value, low), select(value > high, value, high)
        check = fma(value, 0.0, check)  # NaN for infinities and NaN
    if full < count:
        value = _load_masked(row, full, first_lanes(x, count - full))
        low, high = select(value < low, value, low), select(value > high, value, high)
        check = fma(value, 0.0, check)
    return -reduce_greatest(-low), reduce_greatest(high), reduce_add(check) == _ZERO


@helper
def row_scale(row, count):
    """Return (inverse of the step, zero, step) of `count` float32, all float32.

    `row` is (pointer, pointer to a factor for each element, whether there are factors).
    """
    low, high, is_finite = _limits(row, count)
    span = high - low
    is_finite = is_finite and span <= _LARGEST
    inverse, zero = _ZERO, _ZERO
    if is_finite and span >= _LEAST_SPAN:
        inverse = STEPS / span
        zero = (-low * inverse + _ROUNDER) - _ROUNDER
    return inverse, zero, span / STEPS if is_finite else _NAN


@helper
def store_levels(row, count, inverse, zero, levels, padded):
    """Write the quantized values of `count` float32, a row of `row_scale`, and anything up to `padded`."""
    x = row[0]
    full = count - count % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        for line in range(0, lanes(x), CACHE_LINE // itemsize(x)):
            prefetch(x, count + i + line)  # the next row
        store_low_byte(levels, i, _load(row, i) * inverse + _ROUNDER + zero, everywhere)
    for i in range(full, padded, lanes(x)):
        value = _load_masked(row, i, first_lanes(x, count - i))
        store_low_byte(levels, i, value * inverse + _ROUNDER + zero, first_lanes(x, padded - i))


# --- rounded rows -----------------------------------------------------------------------------------------------------
#
# Rounded rows lie one after the other or, for tiles and products of two rows at once, in strips of STRIP_ROWS: a few
# words of each row, then the next ones. Depths are padded to as many (bfloat16 with zeros), rows to whole strips.

_TILED = isa.LEVEL.tiles is not None
_IN_PAIRS = isa.WORD_BYTES == 8
STRIP_ROWS, _STRIP_BYTES = (TILE_ROWS, 4 * TILE_WORDS) if _TILED else (8 if _IN_PAIRS else 1, isa.WORD_BYTES)
DEPTH_WORDS = _STRIP_BYTES // isa.WORD_BYTES  # depths are padded to multiples
_HALVES = _STRIP_BYTES // 2  # bfloat16 of a row in a strip
_ORIGIN = np.float32(isa.LEVEL.int8_origin)


class RoundedRows(NamedTuple):
    """Rounded rows; for bytes also the zero and the step of each row."""

    rows: object
    zeros: object
    steps: object


def whole_depth(width: int, itemsize: int) -> int:
    """Return the padded depth of a rounded row of `width` elements of so many bytes in a word."""
    size = isa.WORD_BYTES // itemsize * DEPTH_WORDS
    return max(-(-width // size), 1) * size


def rows_of_bfloat16(empty, rows: int, width: int) -> RoundedRows:
    """Return memory for rows in bfloat16; `empty(shape, dtype)` allocates an array."""
    return RoundedRows(empty((-(-rows // STRIP_ROWS) * STRIP_ROWS, whole_depth(width, 2)), ROUNDED), None, None)


def rows_of_bytes(empty, rows: int, width: int) -> RoundedRows:
    """Return memory for quantized rows."""
    levels = empty((-(-rows // STRIP_ROWS) * STRIP_ROWS, whole_depth(width, 1)), QUANTIZED)
    return RoundedRows(levels, empty((rows,), np.int32), empty((rows,), np.float32))


# --- for compiled code ----------------------------------------------------------------------------


@inline_helper
def _place(i, k, depth, per_tile):
    """Return the index of element k of row i in strips; `depth` and `per_tile` (of a tile's row) in elements."""
    inside = k % per_tile
    return i // STRIP_ROWS * STRIP_ROWS * depth + (k - inside) * STRIP_ROWS + i % STRIP_ROWS * per_tile + inside


@helper
def round_row_to(source, width, rounded, depth, i):
    """Write a row of float32 at a pointer as row i of bfloat16."""
    if STRIP_ROWS == 1:
        round_row(wide_pointer(source, 0), width, pointer(rounded, i * depth), depth)
        return
    first, x = 0, wide_pointer(source, 0)
    if _IN_PAIRS:
        first = width - width % lanes(x)
        for k in range(0, first, lanes(x)):
            _store_words_of_bfloat16(pointer(rounded, _place(i, k, depth, _HALVES)), load(x, k))
    for k in range(first, depth, _HALVES):
        target = pointer(rounded, _place(i, k, depth, _HALVES))
        round_row(pointer(source, k), min(width - k, _HALVES), target, _HALVES)


@helper
def quantize_row_to(source, width, factors, has_factors, levels, zeros, steps, depth, i):
    """Write a row of float32 at a pointer, times optional factors, as quantized row i, with its zero and step."""
    whole = wide_pointer(source, 0), wide_pointer(factors, 0), has_factors
    inverse, zero, steps[i] = row_scale(whole, width)
    zero -= _ORIGIN
    zeros[i] = np.int32(zero)
    if STRIP_ROWS == 1:
        store_levels(whole, width, inverse, zero, pointer(levels, i * depth), depth)
        return
    first = 0
    if _IN_PAIRS:
        first = width - width % lanes(whole[0])
        for k in range(0, first, lanes(whole[0])):
            target = pointer(levels, _place(i, k, depth, _STRIP_BYTES))
            _store_words_of_bytes(target, _load(whole, k) * inverse + _ROUNDER + zero)
    for k in range(first, depth, _STRIP_BYTES):
        part = pointer(source, k), pointer(factors, k), has_factors
        target = pointer(levels, _place(i, k, depth, _STRIP_BYTES))
        store_levels(part, min(width - k, _STRIP_BYTES), inverse, zero, target, _STRIP_BYTES)
