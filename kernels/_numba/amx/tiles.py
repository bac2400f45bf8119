"""AMX's operations on tiles, and an emulation for CPUs without AMX.

A tile is 16 rows of 64 bytes: of a left operand 16 rows of 16 words, of a right one 16 words of the depth of 16
columns, of sums 16 x 16 float32 or int32. A word is two bfloat16 or four bytes, neighbours along the depth
(products/dot.py). There are eight tiles, whose numbers are literals because they are part of the instructions.

    begin_tiles(state)                                  before all others, in the thread that computes
    zero_tile(state, n)
    load_tile(state, n, source, stride)                 16 rows at a pointer, `stride` bytes apart
    store_tile(state, n, target, stride)
    multiply_bfloat16(state, sums, left, right)         sums += left @ right, numbers of tiles
    multiply_int8(state, sums, left, right)             unsigned on the left, signed on the right
    end_tiles()

`state` points at STATE_SIZE float32 of the thread, on a cache line: AMX reads the tiles' shape there, the emulation
keeps the tiles there. LLVM neither spills nor saves tiles named by number, so code between begin and end must not call
code that uses tiles as well. "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2, defines all
operations: the first and the second elements of pairs of bfloat16 are summed separately over the 16 words of the depth,
by FMA in float32; then both sums are added, and that is added to the tile. Denormals are zeros before and after each
step. Bytes are summed in int32, which wraps. The emulation does the same in the same order. (One difference: AMX
returns zero where rounding alone lifts a denormal result to the least normal number.)
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compile import helper, isa
from ..simd.codegen import INT32, call_llvm, splat

TILE_ROWS = 16
TILE_WORDS = 16  # of a row, and of the depth
TILE_ELEMENTS = TILE_ROWS * TILE_WORDS
STATE_SIZE = 8 * TILE_ELEMENTS
TILES_SCRATCH = STATE_SIZE + 2 * 4 * TILE_ELEMENTS + 16  # of a task of product.py, with two blocks of sums
_BYTE, _INT64 = ir.IntType(8), ir.IntType(64)
_LEAST_NORMAL = 2.0**-126

# --- AMX ------------------------------------------------------------------------------------------


def _emit(builder, name, *arguments):
    call_llvm(builder, f"llvm.x86.{name}", ir.VoidType(), list(arguments))


def _as_bytes(builder, pointer):
    return builder.bitcast(pointer, _BYTE.as_pointer())


def tile_configuration():
    """Return the 64 bytes of palette 1 with eight tiles of 16 rows of 64 bytes."""
    bytes_per_row, rows = [64, 0] * 8, [TILE_ROWS] * 8
    return [1] + [0] * 15 + bytes_per_row + [0] * 16 + rows + [0] * 8


@intrinsic
def _begin(typingctx, state):
    def codegen(context, builder, sig, args):
        shape, at = tile_configuration(), _as_bytes(builder, args[0])
        whole = ir.ArrayType(_BYTE, len(shape))
        builder.store(ir.Constant(whole, shape), builder.bitcast(at, whole.as_pointer()), align=1)
        _emit(builder, "ldtilecfg", at)
        return context.get_dummy_value()

    return types.void(state), codegen


@intrinsic
def _end(typingctx):
    def codegen(context, builder, sig, args):
        _emit(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def _zero(typingctx, state, number):
    def codegen(context, builder, sig, args):
        _emit(builder, "tilezero", _BYTE(number.literal_value))
        return context.get_dummy_value()

    return types.void(state, number), codegen


def _move(name):
    def move(typingctx, state, number, memory, stride):
        def codegen(context, builder, sig, args):
            _emit(builder, name, _BYTE(number.literal_value), _as_bytes(builder, args[2]), args[3])
            return context.get_dummy_value()

        return types.void(state, number, memory, types.intp), codegen

    return intrinsic(prefer_literal=True)(move)


def _product(name):
    def multiply(typingctx, state, sums, left, right):
        def codegen(context, builder, sig, args):
            _emit(builder, name, *(_BYTE(each.literal_value) for each in (sums, left, right)))
            return context.get_dummy_value()

        return types.void(state, sums, left, right), codegen

    return intrinsic(prefer_literal=True)(multiply)


# --- emulation ------------------------------------------------------------------------------------

_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), TILE_WORDS), ir.VectorType(INT32, TILE_WORDS)


def _row(builder, base, index, kind):
    """Return a pointer to row `index` of a tile, or of memory with its stride, as a vector of `kind`."""
    at = builder.gep(base, [builder.mul(index, _INT64(4 * TILE_WORDS))])
    return builder.bitcast(at, kind.as_pointer())


def _flushed(builder, values):
    """Replace denormals by zeros of their sign."""
    least, zeros = (ir.Constant(_FLOATS, [value] * TILE_WORDS) for value in (_LEAST_NORMAL, 0.0))
    is_denormal = builder.fcmp_ordered("<", call_llvm(builder, "llvm.fabs.v16f32", _FLOATS, [values]), least)
    return builder.select(is_denormal, builder.fmul(values, zeros), values)


def _constant(value):
    return ir.Constant(_WORDS, [value] * TILE_WORDS)


def _halves(builder, words):
    """Return the first and the second bfloat16 of each word as float32."""
    halves = builder.shl(words, _constant(16)), builder.and_(words, _constant(0xFFFF0000))
    return [_flushed(builder, builder.bitcast(half, _FLOATS)) for half in halves]


def _words_of(builder, left, right, i, k):
    """Return word k of row i on the left in all lanes, and row k on the right."""
    at = builder.gep(builder.bitcast(left, INT32.as_pointer()), [builder.add(builder.mul(i, _INT64(TILE_WORDS)), k)])
    word = splat(builder, builder.load(at), TILE_WORDS)
    return word, builder.load(_row(builder, right, k, _WORDS), align=4)


def _emit_bfloat16(builder, sums, left, right):
    with cgutils.for_range(builder, _INT64(TILE_ROWS)) as rows:
        totals = [cgutils.alloca_once(builder, _FLOATS) for _ in range(2)]
        for total in totals:
            builder.store(ir.Constant(_FLOATS, [0.0] * TILE_WORDS), total)
        with cgutils.for_range(builder, _INT64(TILE_WORDS)) as depth:
            word, column = _words_of(builder, left, right, rows.index, depth.index)
            for total, *factors in zip(totals, _halves(builder, word), _halves(builder, column), strict=True):
                value = call_llvm(builder, "llvm.fma.v16f32", _FLOATS, [*factors, builder.load(total)])
                builder.store(_flushed(builder, value), total)
        at = _row(builder, sums, rows.index, _FLOATS)
        added = _flushed(builder, builder.fadd(*map(builder.load, totals)))
        before = _flushed(builder, builder.load(at, align=4))
        builder.store(_flushed(builder, builder.fadd(before, added)), at, align=4)


def _emit_int8(builder, sums, left, right):
    with cgutils.for_range(builder, _INT64(TILE_ROWS)) as rows:
        at = _row(builder, sums, rows.index, _WORDS)
        with cgutils.for_range(builder, _INT64(TILE_WORDS)) as depth:
            word, column = _words_of(builder, left, right, rows.index, depth.index)
            total = builder.load(at, align=4)
            for byte in range(4):
                a = builder.and_(builder.lshr(word, _constant(8 * byte)), _constant(0xFF))
                b = builder.ashr(builder.shl(column, _constant(24 - 8 * byte)), _constant(24))
                total = builder.add(total, builder.mul(a, b))
            builder.store(total, at, align=4)


def _emit_move(builder, target, target_stride, source, source_stride):
    with cgutils.for_range(builder, _INT64(TILE_ROWS)) as rows:
        to, at = (
            builder.bitcast(builder.gep(base, [builder.mul(rows.index, stride)]), _WORDS.as_pointer())
            for base, stride in ((target, target_stride), (source, source_stride))
        )
        builder.store(builder.load(at, align=1), to, align=1)


def _call(builder, emit, *arguments):
    """Call a separate function, so that a kernel's code does not grow with each operation."""
    name = f"{__name__}.{emit.__name__}"
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        function = ir.Function(builder.module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        body = ir.IRBuilder(function.append_basic_block())
        emit(body, *function.args)
        body.ret_void()
    builder.call(function, arguments)


def _tile_at(builder, state, number):
    return builder.gep(_as_bytes(builder, state), [_INT64(number.literal_value * 4 * TILE_ELEMENTS)])


@helper
def _begin_emulated(state):
    pass


@helper
def _end_emulated():
    pass


@intrinsic(prefer_literal=True)
def _zero_emulated(typingctx, state, number):
    def codegen(context, builder, sig, args):
        cgutils.memset(builder, _tile_at(builder, args[0], number), _INT64(4 * TILE_ELEMENTS), 0)
        return context.get_dummy_value()

    return types.void(state, number), codegen


def _emulated_move(is_load):
    def move(typingctx, state, number, memory, stride):
        def codegen(context, builder, sig, args):
            tile = _tile_at(builder, args[0], number), _INT64(4 * TILE_WORDS)
            outside = _as_bytes(builder, args[2]), args[3]
            target, source = (tile, outside) if is_load else (outside, tile)
            _call(builder, _emit_move, *target, *source)
            return context.get_dummy_value()

        return types.void(state, number, memory, types.intp), codegen

    return intrinsic(prefer_literal=True)(move)


def _emulated_product(emit):
    def multiply(typingctx, state, sums, left, right):
        def codegen(context, builder, sig, args):
            _call(builder, emit, *(_tile_at(builder, args[0], number) for number in (sums, left, right)))
            return context.get_dummy_value()

        return types.void(state, sums, left, right), codegen

    return intrinsic(prefer_literal=True)(multiply)


if isa.LEVEL.tiles == isa.NATIVE:
    begin_tiles, end_tiles, zero_tile = _begin, _end, _zero
    load_tile, store_tile = _move("tileloadd64"), _move("tilestored64")
    multiply_bfloat16, multiply_int8 = _product("tdpbf16ps"), _product("tdpbusd")
else:
    begin_tiles, end_tiles, zero_tile = _begin_emulated, _end_emulated, _zero_emulated
    load_tile, store_tile = _emulated_move(is_load=True), _emulated_move(is_load=False)
    multiply_bfloat16, multiply_int8 = _emulated_product(_emit_bfloat16), _emulated_product(_emit_int8)
