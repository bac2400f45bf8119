"""What one step of a tile adds to its sums: the dot product of a word of the left matrix and a word of the right.

A word is what lies next to each other along the depth of the product and takes one lane: a float, two bfloat16
(pointers to uint16) or four bytes, unsigned on the left and signed on the right (pointers to uint8 and int8).

    left, right      sums      in one instruction on       elsewhere
    float32/float64  the same  every CPU with FMA          a product and a sum
    uint16, uint16   float32   AVX-512 BF16 (vdpbf16ps)    widened to float32, one FMA for each half
    uint8, int8      int32     VNNI (vpdpbusd)             widened to int16, exact products of pairs (pmaddwd) on x86

Sums of bytes are exact: nothing saturates on any path (vpmaddubsw would), so that all give the same bits. Sums of
bfloat16 differ between CPUs in float32's last bits, as vdpbf16ps rounds its own way and takes denormals for zero.
"""

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError

from . import isa
from .codegen import INT32, call_llvm, emit_fma, splat, vec_of

_INT16 = ir.IntType(16)
_BITS = isa.LEVEL.vector_bytes * 8
_HAS_PAIRS = isa.IS_X86 and isa.LEVEL.tiles != isa.EMULATED  # pmaddwd, of vectors that the CPU has


class Bfloat16(ir.Type):
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, Bfloat16)

    def __hash__(self):
        return hash(Bfloat16)


def _constant(type, value):
    return ir.Constant(type, [value] * type.count)


class FloatDot:
    """sum + left * right."""

    zero = 0.0

    def __init__(self, sums):
        self.sums = vec_of(sums)
        self.word = self.sums.llvm.element

    def left(self, builder, word):
        return splat(builder, word, self.sums.count)

    def right(self, builder, words):
        return words

    def add(self, builder, left, right, total):
        return emit_fma(builder, self.sums, left, right, total)

    def plus(self, builder, a, b):
        return builder.fadd(a, b)


class _PackedDot:
    """Words of 32 bits that hold several elements."""

    word = INT32

    def __init__(self, sums):
        self.sums = vec_of(sums)
        self.words = ir.VectorType(INT32, self.sums.count)


class Bfloat16Dot(_PackedDot):
    """sum + left[0] * right[0] + left[1] * right[1]."""

    zero = 0.0

    def plus(self, builder, a, b):
        return builder.fadd(a, b)

    def left(self, builder, word):
        return self.right(builder, splat(builder, word, self.sums.count))

    def right(self, builder, words):
        if isa.has_native_bfloat16_dot():
            return (builder.bitcast(words, ir.VectorType(Bfloat16(), 2 * self.sums.count)),)
        low = builder.shl(words, _constant(self.words, 16))
        high = builder.and_(words, _constant(self.words, 0xFFFF0000))
        return builder.bitcast(low, self.sums.llvm), builder.bitcast(high, self.sums.llvm)

    def add(self, builder, left, right, total):
        if isa.has_native_bfloat16_dot():
            return call_llvm(builder, f"llvm.x86.avx512bf16.dpbf16ps.{_BITS}", total.type, [total, *left, *right])
        for a, b in zip(left, right, strict=True):
            total = emit_fma(builder, self.sums, a, b, total)
        return total


class Int8Dot(_PackedDot):
    """sum + the four products left[i] * right[i], left unsigned, right signed."""

    zero = 0

    def plus(self, builder, a, b):
        return builder.add(a, b)

    def left(self, builder, word):
        words = splat(builder, word, self.sums.count)
        if isa.LEVEL.int8_dot:
            return (words,)
        if _HAS_PAIRS:
            pairs, byte = builder.bitcast(words, self._pairs), _constant(self._pairs, 8)
            return builder.and_(pairs, _constant(self._pairs, 0xFF)), builder.lshr(pairs, byte)
        shifted = (builder.lshr(words, _constant(self.words, 8 * i)) for i in range(4))
        return tuple(builder.and_(word, _constant(self.words, 0xFF)) for word in shifted)

    def right(self, builder, words):
        if isa.LEVEL.int8_dot:
            return (words,)
        if _HAS_PAIRS:
            pairs, byte = builder.bitcast(words, self._pairs), _constant(self._pairs, 8)
            return builder.ashr(builder.shl(pairs, byte), byte), builder.ashr(pairs, byte)
        shifted = (builder.shl(words, _constant(self.words, 24 - 8 * i)) for i in range(4))
        return tuple(builder.ashr(word, _constant(self.words, 24)) for word in shifted)

    @property
    def _pairs(self):
        return ir.VectorType(_INT16, 2 * self.sums.count)

    def add(self, builder, left, right, total):
        if isa.LEVEL.int8_dot:
            return call_llvm(builder, f"llvm.x86.avx512.vpdpbusd.{_BITS}", total.type, [total, *left, *right])
        for a, b in zip(left, right, strict=True):
            total = builder.add(total, self._product(builder, a, b))
        return total

    def _product(self, builder, a, b):
        if not _HAS_PAIRS:
            return builder.mul(a, b)
        name = {512: "avx512.pmaddw.d.512", 256: "avx2.pmadd.wd", 128: "sse2.pmadd.wd"}[_BITS]
        return call_llvm(builder, f"llvm.x86.{name}", self.words, [a, b])


def dot_of(left, right, sums):
    """The dot product for pointers to left, right and sums."""
    kind = left.dtype, right.dtype, sums.dtype
    if kind in ((types.float32,) * 3, (types.float64,) * 3):
        return FloatDot(sums)
    if kind == (types.uint16, types.uint16, types.float32):
        return Bfloat16Dot(sums)
    if kind == (types.uint8, types.int8, types.int32):
        return Int8Dot(sums)
    raise TypingError(f"no products of {left.dtype} and {right.dtype} summed as {sums.dtype}")
