"""The vector type that Numba sees, and the pieces of LLVM code that the SIMD layer (simd.py) and tiles are made of."""

from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import models, register_model

from . import isa

INT32 = ir.IntType(32)


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
        """As LLVM spells the type in an intrinsic's name: v16f32."""
        kind = "f" if isinstance(self.dtype, types.Float) else "i"
        return f"v{self.count}{kind}{1 if self.dtype == types.boolean else self.dtype.bitwidth}"


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


def dtype_of(source):
    """The Numba scalar type behind an array, pointer, vector or scalar type."""
    dtype = getattr(source, "dtype", source)
    if not isinstance(dtype, types.Float | types.Integer | types.Boolean):
        raise TypingError(f"expected an array, pointer, vector or scalar, got {source}")
    return dtype


class WidePointer(types.CPointer):
    """A pointer whose vectors span several registers: as many independent chains of operations from one expression."""

    registers = 4

    def __init__(self, dtype):
        super().__init__(dtype)
        self.name = f"wide {dtype}*"


register_model(WidePointer)(models.PointerModel)


def vec_of(source):
    """The vector type that belongs to an array, pointer, vector or scalar type."""
    if isinstance(source, Vec):
        return source
    return Vec(dtype_of(source), isa.lanes(dtype_of(source)) * getattr(source, "registers", 1))


def mask_of(source):
    return Vec(types.boolean, vec_of(source).count)


def common_vec(*operands):
    """The one vector type among the operands; the rest must be scalars."""
    vectors = {operand for operand in operands if isinstance(operand, Vec)}
    scalars = all(isinstance(operand, Vec | types.Number) for operand in operands)
    return vectors.pop() if len(vectors) == 1 and scalars else None


def shuffle(builder, a, b, order):
    """A vector of the lanes of a and b (numbered on after a's) in the given order."""
    order = list(order)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(order)), order))


def splat(builder, value, count):
    """One LLVM scalar in all lanes."""
    vector = ir.VectorType(value.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    return shuffle(builder, one, one, [0] * count)


def call_llvm(builder, name, result, arguments):
    """Call an LLVM intrinsic by its full name (llvmlite's declare_intrinsic knows no vector types)."""
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def emit_fma(builder, vec, a, b, c):
    """a * b + c: fused where the CPU can, two roundings where it cannot (a library call per lane otherwise)."""
    return call_llvm(builder, f"llvm.{'fma' if isa.LEVEL.fma else 'fmuladd'}.{vec.suffix}", vec.llvm, [a, b, c])


def element_pointer(context, builder, source, value, index):
    """The address of element `index` of an array (as flat memory) or a pointer."""
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
    """Load from memory; `is_again` does so although the same was loaded before, so that no register keeps it."""
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
    loop.operands = (loop, wish)  # a loop's identity begins with itself
    branch.set_metadata("llvm.loop", loop)
