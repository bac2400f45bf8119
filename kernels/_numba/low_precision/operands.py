"""The operands of attention's products in memory: floats as they are, or rounded to bfloat16, two to a word.

`storage` is a typed scalar: float32 or float64, the arrays' own dtype, or uint16 for bfloat16 (of float32 arrays). The
left operand of a tile holds words along its rows; the right one is a panel, (depth in words, columns), where a word has
two neighbours of one column. Depths are padded with zeros to whole words.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..compile import by_types, isa
from ..products.panels import pack_panel, prefetch_rows
from ..simd import broadcast, first_lanes, lanes, load, load_masked, pointer, store, wide_pointer
from ..simd.codegen import INT32, Bfloat16, Vec, WidePointer, call_llvm, shuffle
from . import round_row

AHEAD = 16  # rows to prefetch: the hardware does not predict rows that are far apart


@intrinsic
def as_words(typingctx, source, storage):
    """Return a pointer to the same memory, for words."""
    result = types.CPointer(storage)

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(source, storage), codegen


@intrinsic
def join_bfloat16(typingctx, low, high):
    """Round two vectors of float32 to bfloat16 (nearest even) and join them in one of words, typed float32."""
    is_native = isa.has_native_bfloat16_dot() and isa.IS_X86 and low.count == 16
    emit = _join_natively if is_native else _join

    return low(low, low), lambda context, builder, sig, args: builder.bitcast(emit(builder, *args), low.llvm)


def _join_natively(builder, low, high):
    pairs = ir.VectorType(Bfloat16(), 32)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    rounded = builder.bitcast(call_llvm(builder, name, pairs, [high, low]), ir.VectorType(ir.IntType(16), 32))
    return shuffle(builder, rounded, rounded, [lane for i in range(16) for lane in (i, i + 16)])


def _join(builder, low, high):
    bits = ir.VectorType(INT32, low.type.count)

    def constant(integer):
        return ir.Constant(bits, [integer] * bits.count)

    def rounded(value):
        """Round to the upper 16 bits, without clearing the lower; the quiet bit preserves NaN."""
        pattern = builder.bitcast(value, bits)
        odd = builder.and_(builder.lshr(pattern, constant(16)), constant(1))
        nearest = builder.add(builder.add(pattern, constant(0x7FFF)), odd)
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.select(is_nan, builder.or_(pattern, constant(0x400000)), nearest)

    first, second = rounded(low), rounded(high)
    return builder.or_(builder.lshr(first, constant(16)), builder.and_(second, constant(0xFFFF0000)))


@intrinsic(prefer_literal=True)
def _register(typingctx, value, index):
    """Return register `index`, a literal, of a wide vector."""
    part = Vec(value.dtype, value.count // WidePointer.registers)
    first = index.literal_value * part.count

    def codegen(context, builder, sig, args):
        return shuffle(builder, args[0], args[0], range(first, first + part.count))

    return part(value, index), codegen  # the literal is part of the signature: one implementation for each


@by_types
def elements_per_word(storage):
    """Return 1, or 2 for bfloat16."""
    return (lambda storage: 2) if storage == types.uint16 else (lambda storage: 1)


# --- the left operand: rows -------------------------------------------------------------------------


@by_types
def lay_rows(source, source_row, count, depth, target, target_row, storage):
    """Write (count, depth) floats at a pointer as rows of words at `target`, `target_row` words apart."""
    return _round_rows if storage == types.uint16 else _copy_rows


def _copy_rows(source, source_row, count, depth, target, target_row, storage):
    full = depth - depth % lanes(source)
    for i in range(count):
        prefetch_rows(source, source_row, i + AHEAD, i + AHEAD + 1, depth)
        x, y = pointer(source, i * source_row), pointer(target, i * target_row)
        for j in range(0, full, lanes(source)):
            store(y, j, load(x, j))
        if full < depth:
            store(y, full, load_masked(x, full, first_lanes(source, depth - full), 0.0))


def _round_rows(source, source_row, count, depth, target, target_row, storage):
    for i in range(count):
        prefetch_rows(source, source_row, i + AHEAD, i + AHEAD + 1, depth)
        round_row(pointer(source, i * source_row), depth, pointer(target, 2 * i * target_row), (depth + 1) // 2 * 2)


# --- the right operand: panels ----------------------------------------------------------------------


@by_types
def lay_columns(source, source_row, count, depth, panel, width, spare, storage):
    """Write (count, depth) floats at a pointer as a panel with a column for each row; `spare` holds count * depth."""
    return _round_columns if storage == types.uint16 else _transpose_columns


def _transpose_columns(source, source_row, count, depth, panel, width, spare, storage):
    pack_panel(source, source_row, 1, count, depth, panel, width)


def _round_columns(source, source_row, count, depth, panel, width, spare, storage):
    words = (depth + 1) // 2
    lay_rows(source, source_row, count, depth, as_words(spare, storage), words, storage)
    pack_panel(spare, words, 1, count, words, panel, width)


@by_types
def lay_depth(source, source_row, depth, columns, panel, width, storage):
    """Write (depth, columns) floats at a pointer as a panel."""
    return _round_depth if storage == types.uint16 else _copy_depth


def _copy_depth(source, source_row, depth, columns, panel, width, storage):
    lay_rows(source, source_row, depth, columns, panel, width, storage)


def _round_depth(source, source_row, depth, columns, panel, width, storage):
    for k in range(0, depth, 2):
        prefetch_rows(source, source_row, k + AHEAD, k + AHEAD + 2, columns)
        for j in range(0, columns, lanes(source)):
            inside = first_lanes(source, columns - j)
            even, odd = load_masked(source, k * source_row + j, inside, 0.0), broadcast(source, 0.0)
            if k + 1 < depth:
                odd = load_masked(source, (k + 1) * source_row + j, inside, 0.0)
            store(panel, k // 2 * width + j, join_bfloat16(even, odd))


@by_types(inline=True)
def store_depth(matrix, index, value, width, storage):
    """Write the wide vector `value`, several rows of a (depth, width) matrix from element `index` on, as words.

    Words of bfloat16 are written to half the index.
    """
    return _store_pairs if storage == types.uint16 else _store_floats


def _store_floats(matrix, index, value, width, storage):
    store(wide_pointer(matrix, 0), index, value)


def _store_pairs(matrix, index, value, width, storage):
    at, step = index // 2, lanes(matrix)
    if width == step:
        store(matrix, at, join_bfloat16(_register(value, 0), _register(value, 1)))
        store(matrix, at + step, join_bfloat16(_register(value, 2), _register(value, 3)))
    else:
        store(matrix, at, join_bfloat16(_register(value, 0), _register(value, 2)))
        store(matrix, at + step, join_bfloat16(_register(value, 1), _register(value, 3)))
