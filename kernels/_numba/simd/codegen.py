"""The vector type for Numba, its operators, and the LLVM code that vectors and tiles are made of."""

import operator

from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast, models, register_model

from ..compile import isa

INT32 = ir.IntType(32)


class Bfloat16(ir.Type):
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, Bfloat16)

    def __hash__(self):
        return hash(Bfloat16)


class Vec(types.Type):
    """`count` elements of the Numba scalar type `dtype` in one LLVM vector; a mask is a Vec of booleans."""

    def __init__(self, dtype, count):
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Vec({dtype}, {count})")

    @property
    def llvm(self):
        element = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.boolean: ir.IntType(1)}
        return ir.VectorType(element.get(self.dtype) or ir.IntType(self.dtype.bitwidth), self.count)

    @property
    def suffix(self):
        """Return the type as in the name of an LLVM intrinsic, such as v16f32."""
        kind = "f" if isinstance(self.dtype, types.Float) else "i"
        return f"v{self.count}{kind}{1 if self.dtype == types.boolean else self.dtype.bitwidth}"


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


def dtype_of(source):
    """Return the Numba scalar type of the elements of an array, pointer, vector or scalar type."""
    dtype = getattr(source, "dtype", source)
    if not isinstance(dtype, types.Float | types.Integer | types.Boolean):
        raise TypingError(f"expected an array, pointer, vector or scalar, got {source}")
    return dtype


class WidePointer(types.CPointer):
    """A pointer whose vectors span several registers: one expression gives several independent chains of operations."""

    registers = 4

    def __init__(self, dtype):
        super().__init__(dtype)
        self.name = f"wide {dtype}*"


register_model(WidePointer)(models.PointerModel)


def vec_of(source):
    """Return the vector type for an array, pointer, vector or scalar type."""
    if isinstance(source, Vec):
        return source
    return Vec(dtype_of(source), isa.lanes(dtype_of(source)) * getattr(source, "registers", 1))


def mask_of(source):
    return Vec(types.boolean, vec_of(source).count)


def common_vec(*operands):
    """Return the one vector type among the operands; the others must be scalars."""
    vectors = {operand for operand in operands if isinstance(operand, Vec)}
    scalars = all(isinstance(operand, Vec | types.Number) for operand in operands)
    return vectors.pop() if len(vectors) == 1 and scalars else None


def shuffle(builder, a, b, order):
    """Return a vector of the lanes of a and b in the given order; b's numbers continue after a's."""
    order = list(order)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(order)), order))


def splat(builder, value, count):
    """Return a vector with one LLVM scalar in all lanes."""
    vector = ir.VectorType(value.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    return shuffle(builder, one, one, [0] * count)


def call_llvm(builder, name, result, arguments):
    """Call an LLVM intrinsic by its full name (llvmlite's declare_intrinsic knows no vector types)."""
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def emit_fma(builder, vec, a, b, c):
    """Emit a * b + c: fused if the CPU has FMA, else with two roundings (LLVM would call a library for each lane)."""
    return call_llvm(builder, f"llvm.{'fma' if isa.LEVEL.fma else 'fmuladd'}.{vec.suffix}", vec.llvm, [a, b, c])


def in_order(builder, value):
    """Return the vector behind a fence: LLVM would load or compute all at once, in too many registers."""
    constraint = "=w,0" if isa.IS_ARM else "=v,0" if isa.LEVEL.registers >= 32 else "=x,0"
    barrier = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", constraint, side_effect=True)
    return builder.call(barrier, [value])


def element_pointer(context, builder, source, value, index):
    """Return the address of element `index` of an array (as flat memory) or a pointer."""
    base = context.make_array(source)(context, builder, value).data if isinstance(source, types.Array) else value
    return builder.gep(base, [index])


def check_memory(source):
    if isinstance(source, types.Array) and source.layout == "C":
        return
    if not isinstance(source, types.CPointer):
        raise TypingError(f"expected a C-contiguous array or a pointer, got {source}")


def as_vector_pointer(builder, pointer, vec):
    return builder.bitcast(pointer, vec.llvm.as_pointer())


class _VolatileLoad(ir.instructions.LoadInstr):
    def descr(self, buf):
        lines = []
        super().descr(lines)
        buf.append("".join(lines).replace("load", "load volatile", 1))


def emit_load(builder, pointer, align, *, is_again):
    """Load from memory; with `is_again` even if the same was loaded before, so that no register keeps it."""
    load = (_VolatileLoad if is_again else ir.instructions.LoadInstr)(builder.block, pointer)
    load.align = align
    builder._insert(load)
    return load


def emit_prefetch(builder, pointer, *, level=1, write=False):
    """Fetch the cache line of `pointer` into the cache of the given level (1 or 2)."""
    at = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    locality, data = INT32(4 - level), INT32(1)
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [at, INT32(int(write)), locality, data])


def element_bytes(vec):
    return vec.dtype.bitwidth // 8


def keep_loop_as_written(builder, branch):
    """Tell LLVM not to unroll the loop that `branch` closes."""
    module = builder.module
    wish = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = MDValue(module, [], name=str(len(module.metadata)))
    loop.operands = (loop, wish)  # LLVM requires the node itself as the first operand
    branch.set_metadata("llvm.loop", loop)


# --- Python's operators on vectors -----------------------------------------------------------------------------------
#
# A scalar operand is rounded to the vector's dtype and broadcast.


@lower_cast(types.Number, Vec)
def _broadcast_cast(context, builder, from_type, to_type, value):
    return splat(builder, context.cast(builder, value, from_type, to_type.dtype), to_type.count)


def _register_operator(functions, emit, result_of):
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            vec = common_vec(*args)
            if vec is not None and (vec.dtype == types.boolean) == (result_of is None):
                return signature(vec if result_of is None else result_of(vec), *[vec] * len(args))
            return None

    def lower(context, builder, sig, args):
        return emit(builder, *args)

    for function, arity in functions:
        infer_global(function)(Template)
        lower_builtin(function, *[Vec] * arity)(lower)


def _same(vec):
    return vec


for _name, _symbol in (("fadd", "add"), ("fsub", "sub"), ("fmul", "mul"), ("fdiv", "truediv")):
    _register_operator(
        [(getattr(operator, _symbol), 2), (getattr(operator, "i" + _symbol), 2)],
        lambda builder, a, b, name=_name: getattr(builder, name)(a, b),
        _same,
    )
_register_operator([(operator.neg, 1)], lambda builder, a: builder.fneg(a), _same)
for _name, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")):
    _register_operator(
        [(getattr(operator, _name), 2)],
        lambda builder, a, b, symbol=_symbol: builder.fcmp_ordered(symbol, a, b),
        mask_of,
    )
_register_operator([(operator.ne, 2)], lambda builder, a, b: builder.fcmp_unordered("!=", a, b), mask_of)
_register_operator([(operator.and_, 2), (operator.iand, 2)], lambda builder, a, b: builder.and_(a, b), None)
_register_operator([(operator.or_, 2), (operator.ior, 2)], lambda builder, a, b: builder.or_(a, b), None)
_register_operator([(operator.invert, 1)], lambda builder, a: builder.not_(a), None)
