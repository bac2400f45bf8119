"""Panels of low precision beside rows of float32: they are widened to panels of float32.

bfloat16 (dtype uint16) is on CPUs that do not multiply it faster, int8 in groups (uint8, see group_panels.py) on all.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from .codegen import INT32, Vec, as_vector_pointer, vec_of
from .dot import WidenedDot
from .group_panels import BLOCK, BLOCK_WORDS, GROUP, GROUPS
from .simd import lanes

_OPTIONS = {"error_model": "numpy", "nogil": True}  # of overloads: those of helpers


def are_widened(a, panels):
    """Whether panels of this type are widened beside rows of that one."""
    return a.dtype == types.float32 and panels.dtype in (types.uint16, types.uint8)


def whole_words(panels, depth):
    """The words of a panel that a depth of so many floats takes, a multiple of BLOCK."""
    raise NotImplementedError("for compiled code")


@overload(whole_words, jit_options=_OPTIONS)
def _whole_words(panels, depth):
    if panels.dtype == types.uint16:
        return lambda panels, depth: depth // 2
    return lambda panels, depth: depth // BLOCK * BLOCK_WORDS


def depth_of(panels, words):
    """The reverse of `whole_words`."""
    raise NotImplementedError("for compiled code")


@overload(depth_of, jit_options=_OPTIONS)
def _depth_of(panels, words):
    if panels.dtype == types.uint16:
        return lambda panels, words: 2 * words
    return lambda panels, words: words // BLOCK_WORDS * BLOCK


def widen_panel(panel, words, wide, width):
    """Write so many words of a panel, `width` columns of them, as rows of float32."""
    raise NotImplementedError("for compiled code")


@overload(widen_panel, jit_options=_OPTIONS)
def _widen_panel(panel, words, wide, width):
    return _widen_bfloat16 if panel.dtype == types.uint16 else _widen_groups


def _widen_bfloat16(panel, words, wide, width):
    for i in range(words):
        for j in range(0, width, lanes(wide)):
            _widen_words(panel, 2 * (i * width + j), wide, 2 * i * width + j, width)


def _widen_groups(panel, words, wide, width):
    for group in range(words // BLOCK_WORDS * GROUPS):
        block, place = divmod(group, GROUPS)
        start = block * BLOCK_WORDS * 4 * width
        for j in range(0, width, lanes(wide)):
            scale = _load_scale(panel, start + 2 * (place * width + j), wide)
            at, target = start + 4 * width + place * GROUP * width + j, group * GROUP * width + j
            for k in range(GROUP):
                _widen_bytes(panel, at + k * width, scale, wide, target + k * width)


@intrinsic
def _widen_words(typingctx, source, index, target, target_index, row):
    """A vector of words of two bfloat16, from element `index` of a pointer on, as two of float32: that of the first
    halves, and, `row` elements after it, that of the second."""
    dot = WidenedDot(types.float32)

    def codegen(context, builder, sig, args):
        source, index, target, at, row = args
        words = builder.bitcast(builder.gep(source, [index]), dot.words.as_pointer())
        words = builder.load(words, align=2)
        for part, first in enumerate((at, builder.add(at, row))):
            place = builder.bitcast(builder.gep(target, [first]), dot.sums.llvm.as_pointer())
            builder.store(dot.right(builder, words, part), place, align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), codegen


@intrinsic
def _load_scale(typingctx, source, index, like):
    """A vector of bfloat16, from byte `index` of a pointer on, as float32."""
    wide = vec_of(like)

    def codegen(context, builder, sig, args):
        halves = ir.VectorType(ir.IntType(16), wide.count)
        found = builder.load(builder.bitcast(builder.gep(args[0], [args[1]]), halves.as_pointer()), align=2)
        bits = builder.zext(found, ir.VectorType(INT32, wide.count))
        shift = ir.Constant(bits.type, [16] * wide.count)
        return builder.bitcast(builder.shl(bits, shift), wide.llvm)

    return wide(source, types.intp, like), codegen


@intrinsic
def _widen_bytes(typingctx, source, index, scale, target, target_index):
    """A vector of int8 from byte `index` of a pointer on, times the scale, as float32."""
    wide = Vec(types.float32, scale.count)

    def codegen(context, builder, sig, args):
        source, index, scale, target, at = args
        narrow = ir.VectorType(ir.IntType(8), wide.count)
        found = builder.load(builder.bitcast(builder.gep(source, [index]), narrow.as_pointer()), align=1)
        values = builder.sitofp(builder.sext(found, ir.VectorType(INT32, wide.count)), wide.llvm)
        place = as_vector_pointer(builder, builder.gep(target, [at]), wide)
        builder.store(builder.fmul(values, scale), place, align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, scale, target, types.intp), codegen
