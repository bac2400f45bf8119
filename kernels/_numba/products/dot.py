"""Dot products of one word of each matrix, which one step of a tile adds to its sums.

A word holds neighbours along the depth of the product and takes one lane: a float, two bfloat16 (pointers to uint16) or
four bytes, unsigned on the left and signed on the right (pointers to uint8 and int8).

    left, right      sums      in one instruction on              elsewhere
    float32/float64  the same  every CPU with FMA                 a product and a sum
    uint16, uint16   float32   AVX-512 BF16 (vdpbf16ps), bfdot    widened to float32, one FMA for each half
    float32, uint16  float32                                      the right widened to float32, one FMA for each half
    float32, uint8   float32                                      one byte, widened and multiplied by its group's scale
    uint8, int8      int32     VNNI (vpdpbusd), sdot              widened to int32
    uint16, int8     int32                                        widened to int16, exact products of pairs (vpmaddwd)
    uint16, uint16   int32                                        such pairs, both in 16 bits

ARM's sdot takes signed bytes on the left, too: quantized values are 128 lower there (isa.Level.int8_origin). Its smmla
and bfmmla multiply words of 8 bytes, of two rows and two columns at once (MatrixDot).

With words of two bfloat16, a word of float32 is two floats, for CPUs where vdpbf16ps is missing or slow
(compile/isa.py). Only the right side is widened then, once for all rows of a tile or task, and the sums equal those of
float32 with the widened weight. It is as fast as float32; widening both sides takes three times as long.

Sums of bytes are exact: nothing saturates on any path (vpmaddubsw would), so all give the same bits. Sums of bfloat16
differ between CPUs in float32's last bits: vdpbf16ps has its own rounding and flushes denormals.
"""

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError

from ..compile import isa
from ..simd.codegen import INT32, Bfloat16, call_llvm, emit_fma, shuffle, splat, vec_of

# Panels of int8 in groups (panels.py): scales of GROUPS groups, then their values.
GROUPS = 2  # in a block
GROUP = 32  # values
BLOCK = GROUPS * GROUP
BLOCK_WORDS = 1 + BLOCK // 4

_INT8, _INT16, _INT64 = (ir.IntType(bits) for bits in (8, 16, 64))
_BITS = isa.LEVEL.vector_bytes * 8


def _constant(type, value):
    return ir.Constant(type, [value] * type.count)


class _Dot:
    """Compute sums of products of words, in `parts` of a word.

    `left` is a part of a word in memory, the same in all lanes, `right` that part of a vector of words, and `add` adds
    their product.
    """

    parts, rows = 1, 1

    def __init__(self, sums):
        self.sums = vec_of(sums)
        self.is_float = isinstance(self.sums.dtype, types.Float)
        self.zero = 0.0 if self.is_float else 0

    def add(self, builder, left, right, total):
        return emit_fma(builder, self.sums, left, right, total)

    def plus(self, builder, a, b):
        return builder.fadd(a, b) if self.is_float else builder.add(a, b)


class FloatDot(_Dot):
    """Compute sum + left * right."""

    def __init__(self, sums):
        super().__init__(sums)
        self.word = self.left_word = self.sums.llvm.element

    def left(self, builder, at, part):
        return _splat(builder, at, self.sums.count)

    def right(self, builder, words, part):
        return words


def _splat(builder, at, count):
    """Load a word at any address into all lanes."""
    if not isa.IS_ARM or at.type.pointee == ir.DoubleType():
        return splat(builder, builder.load(at, align=4), count)
    # ARM's instructions accept a lane of a register at no cost. LLVM would load into all lanes, which occupies a
    # multiplication unit.
    floats, word = ir.VectorType(ir.FloatType(), count), at.type.pointee
    value = builder.load(builder.bitcast(at, ir.FloatType().as_pointer()), align=4)
    one = builder.insert_element(ir.Constant(floats, ir.Undefined), value, INT32(0))
    one = call_llvm(builder, f"llvm.arithmetic.fence.v{count}f32", floats, [one])
    one = builder.bitcast(one, ir.VectorType(word, count))
    return shuffle(builder, one, one, [0] * count)


class GroupDot(FloatDot):
    """Compute sum + left * right, of a float and a byte; the tile multiplies the byte by its scale (tile.py)."""

    def __init__(self, sums):
        super().__init__(sums)
        self.word = ir.IntType(8)

    def right(self, builder, words, part):
        return builder.sitofp(builder.sext(words, ir.VectorType(INT32, self.sums.count)), self.sums.llvm)


class _PackedDot(_Dot):
    """Words of 32 bits that hold several elements."""

    word = left_word = INT32

    def __init__(self, sums):
        super().__init__(sums)
        self.words = ir.VectorType(INT32, self.sums.count)

    def _splat_word(self, builder, at):
        return _splat(builder, at, self.sums.count)


class WidenedDot(_PackedDot):
    """Compute sum + left[0] * right[0] + left[1] * right[1], of two floats and two bfloat16."""

    parts = 2
    left_word = ir.ArrayType(ir.FloatType(), 2)

    def left(self, builder, at, part):
        return self._splat_word(builder, builder.gep(at, [INT32(0), INT32(part)]))

    def right(self, builder, words, part):
        if part == 0:
            bits = builder.shl(words, _constant(self.words, 16))
        else:
            bits = builder.and_(words, _constant(self.words, 0xFFFF0000))
        return builder.bitcast(bits, self.sums.llvm)


class Bfloat16Dot(WidenedDot):
    """Compute sum + left[0] * right[0] + left[1] * right[1], of two bfloat16 each."""

    parts = 1 if isa.has_native_bfloat16_dot() else 2
    left_word = INT32

    def left(self, builder, at, part):
        return self.right(builder, self._splat_word(builder, at), part)

    def right(self, builder, words, part):
        if self.parts == 2:
            return super().right(builder, words, part)
        return builder.bitcast(words, ir.VectorType(Bfloat16(), 2 * self.sums.count))

    def add(self, builder, left, right, total):
        if self.parts == 2:
            return super().add(builder, left, right, total)
        operands = [right, left] if isa.IS_ARM else [left, right]  # ARM's last one may be a lane
        return call_llvm(builder, isa.LEVEL.bfloat16_dot, total.type, [total, *operands])


class Int8Dot(_PackedDot):
    """Compute sum + the four products left[i] * right[i], left unsigned, right signed."""

    parts = 1 if isa.LEVEL.int8_dot else 4

    def left(self, builder, at, part):
        words = self._splat_word(builder, at)
        if self.parts == 1:
            return words
        shifted = builder.lshr(words, _constant(self.words, 8 * part))
        return builder.and_(shifted, _constant(self.words, 0xFF))

    def right(self, builder, words, part):
        if self.parts == 1:
            return words
        return builder.ashr(builder.shl(words, _constant(self.words, 24 - 8 * part)), _constant(self.words, 24))

    def add(self, builder, left, right, total):
        if self.parts == 4:
            return builder.add(total, builder.mul(left, right))
        if isa.IS_ARM:  # the last operand may be a lane
            right, left = (builder.bitcast(words, ir.VectorType(_INT8, 16)) for words in (left, right))
        return call_llvm(builder, isa.LEVEL.int8_dot, total.type, [total, left, right])


class MatrixDot(_Dot):
    """Compute sums of two rows and two columns at once, from words of 8 bytes.

    A register holds words of two rows or of two columns, or sums: those of the first row for both columns, then those
    of the second row. Rows are stored in strips (low_precision): a word of each of 8 rows, then the next words.
    """

    word = left_word = _INT64
    rows = 2

    def __init__(self, sums):
        super().__init__(sums)
        self._elements = ir.VectorType(Bfloat16(), 8) if self.is_float else ir.VectorType(_INT8, 16)

    def left(self, builder, at, part):
        pair = builder.bitcast(at, ir.VectorType(_INT64, 2).as_pointer())
        return builder.bitcast(builder.load(pair, align=4), self._elements)

    def right(self, builder, words, part):
        return builder.bitcast(words, self._elements)

    def add(self, builder, left, right, total):
        name = isa.LEVEL.bfloat16_matrix if self.is_float else isa.LEVEL.int8_matrix
        return call_llvm(builder, name, total.type, [total, left, right])

    def by_row(self, builder, sums):
        """Return the sums of two rows, whose registers alternate: the vectors of the first row, then of the second."""
        pairs = list(zip(sums[::2], sums[1::2], strict=True))
        return [shuffle(builder, a, b, order) for order in ((0, 1, 4, 5), (2, 3, 6, 7)) for a, b in pairs]


class PairDot(_PackedDot):
    """Compute sum + left[0] * right[0] + left[1] * right[1], of 16 bits each."""

    def left(self, builder, at, part):
        return builder.bitcast(self._splat_word(builder, at), self._pairs)

    def right(self, builder, words, part):
        return builder.bitcast(words, self._pairs)

    @property
    def _pairs(self):
        return ir.VectorType(_INT16, 2 * self.sums.count)

    def add(self, builder, left, right, total):
        name = {512: "avx512.pmaddw.d.512", 256: "avx2.pmadd.wd", 128: "sse2.pmadd.wd"}[_BITS]
        return _fenced(builder, builder.add(total, call_llvm(builder, f"llvm.x86.{name}", self.words, [left, right])))


class Int16Dot(PairDot):
    """Compute sum + the four products of left[0], left[2], left[1], left[3] (16 bits) and right[i] (8), in pairs."""

    parts = 2
    left_word = ir.ArrayType(INT32, 2)

    def left(self, builder, at, part):
        return super().left(builder, builder.gep(at, [INT32(0), INT32(part)]), part)

    def right(self, builder, words, part):
        pairs, byte = super().right(builder, words, part), _constant(self._pairs, 8)
        return builder.ashr(builder.shl(pairs, byte) if part == 0 else pairs, byte)


def _fenced(builder, total):
    """Return the vector behind a fence: LLVM would reorder the sums and need more registers than there are."""
    floats = ir.VectorType(ir.FloatType(), total.type.count)
    fenced = call_llvm(builder, f"llvm.arithmetic.fence.v{floats.count}f32", floats, [builder.bitcast(total, floats)])
    return builder.bitcast(fenced, total.type)


def dot_of(left, right, sums, are_prepared=False):
    """Return the dot product for pointers to left, right and sums; in words of isa.WORD_BYTES if they are prepared."""
    kind = left.dtype, right.dtype, sums.dtype
    in_pairs = (types.uint16, types.uint16, types.float32), (types.uint8, types.int8, types.int32)
    if are_prepared and isa.WORD_BYTES == 8 and kind in in_pairs:
        return MatrixDot(sums)
    if kind in ((types.float32,) * 3, (types.float64,) * 3):
        return FloatDot(sums)
    if kind == (types.uint16, types.uint16, types.float32):
        return Bfloat16Dot(sums)
    if kind == (types.float32, types.uint16, types.float32):
        return WidenedDot(sums)
    if kind == (types.float32, types.uint8, types.float32):
        return GroupDot(sums)
    if kind == (types.uint8, types.int8, types.int32):
        return Int8Dot(sums)
    if kind == (types.uint16, types.int8, types.int32):
        return Int16Dot(sums)
    if kind == (types.uint16, types.uint16, types.int32):
        return PairDot(sums)
    raise TypingError(f"no products of {left.dtype} and {right.dtype} summed as {sums.dtype}")
