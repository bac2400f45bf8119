"""Rows of float32 rounded to bfloat16 or to bytes, and what turns sums of bytes back into float32.

Products beside weights in bfloat16 and int8 take rows of ROUNDED and of LEVELS (see dot.py). Where ROUNDED is float32
rows are not rounded, and bfloat16 is widened. In uint16 four levels stand in the order 0, 2, 1, 3.

kernels/linear/reference.py has the formulas (`quantize_rows`); these give the same bits.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

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
    prefetch,
    reduce_add,
    reduce_greatest,
    select,
)
from ..simd.codegen import INT32, Bfloat16, Vec, call_llvm, element_pointer, shuffle

ROUNDED = np.uint16 if isa.LEVEL.bfloat16_dot else np.float32
LEVELS = np.uint16 if isa.has_pair_dot() else np.uint8
STEPS = np.float32(254)
_LARGEST, _LEAST_SPAN = np.finfo(np.float32).max, np.finfo(np.float32).tiny * STEPS
_ZERO, _NAN = np.float32(0), np.float32(np.nan)
# Adding it rounds a float32 to an integer, which then stands in the lowest bits.
_ROUNDER = np.float32(1.5 * 2**23)


def _narrow_store(name, doc, forms):
    """A masked store of vectors of float32 as another dtype; `forms` has, by dtype, what makes its elements of their
    bits, an LLVM vector.
    """

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
    """The upper half of the bits, rounded to nearest even; the quiet bit keeps a NaN one."""

    def constant(integer):
        return ir.Constant(bits.type, [integer] * bits.type.count)

    upper = builder.lshr(bits, constant(16))
    odd = builder.and_(upper, constant(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, builder.or_(upper, constant(0x40)), rounded)


def _bfloat16(builder, bits, value):
    halves = ir.VectorType(ir.IntType(16), bits.type.count)
    if isa.has_native_bfloat16_dot() and halves.count == 16:  # denormals become zeros, as in the products
        name, rounded = "llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(Bfloat16(), 16)
        return builder.bitcast(call_llvm(builder, name, rounded, [value]), halves)
    return builder.trunc(_upper_half(builder, bits, value), halves)


store_bfloat16 = _narrow_store(
    "store_bfloat16",
    "Write a vector of float32 rounded to bfloat16, two bytes each, in the mask's lanes.",
    {types.uint16: _bfloat16},
)
store_low_byte = _narrow_store(
    "store_low_byte",
    "Write the lowest byte of each float32's bits, in the mask's lanes: bytes, or 16 bits with the middle two of four "
    "exchanged.",
    {types.uint8: _low_byte, types.uint16: _low_byte_of_pairs},
)


@intrinsic
def corrected_sums(typingctx, sums, zero, column_sums):
    """float32(sums - zero * column_sums): vectors of int32 and a scalar; the difference is exact."""
    result = Vec(types.float32, sums.count)

    def codegen(context, builder, sig, args):
        sums, zero, column_sums = args
        return builder.sitofp(builder.sub(sums, builder.mul(zero, column_sums)), result.llvm)

    return result(sums, sums, sums), codegen


@helper
def round_row(x, count, target, padded):
    """`count` float32 at a pointer as bfloat16 (uint16), zeros up to `padded`."""
    full = count - count % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        store_bfloat16(target, i, load(x, i), everywhere)
    for i in range(full, padded, lanes(x)):
        value = load_masked(x, i, first_lanes(x, count - i), 0.0)
        store_bfloat16(target, i, value, first_lanes(x, padded - i))


@inline_helper
def _load(row, i):
    """A vector of a row, times its factors if it has some."""
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
    """The least and the greatest number of a row, zero among them, and whether all are finite."""
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
    """(inverse of the step, zero, step) of `count` float32; zero is a float32, too.

    `row` is (a pointer to them, a pointer to what each is multiplied by before, whether it is).
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
    """Write the levels of `count` float32, a row of `row_scale`, anything up to `padded`."""
    x = row[0]
    full = count - count % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        for line in range(0, lanes(x), CACHE_LINE // itemsize(x)):
            prefetch(x, count + i + line)  # the next row: 1 to 3 % less time of a product with 1,024 rows
        store_low_byte(levels, i, _load(row, i) * inverse + _ROUNDER + zero, everywhere)
    for i in range(full, padded, lanes(x)):
        value = _load_masked(row, i, first_lanes(x, count - i))
        store_low_byte(levels, i, value * inverse + _ROUNDER + zero, first_lanes(x, padded - i))
