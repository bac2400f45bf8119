"""A small SIMD layer for Numba: vectors as values, kernels as plain Python.

A vector (`Vec`) holds `lanes(x)` elements of x's dtype: as many as a register of this CPU, chosen when the kernel
compiles. `x` stands for anything with a dtype: a C-contiguous array, a pointer, a vector or a typed scalar.
Example, out = x * w:

    from .._numba import as_kernel_array, kernel
    from .._numba.simd import first_lanes, lanes, load, load_masked, store, store_masked

    @kernel
    def scale(x, w, out):                            # float32 or float64 arrays of one dtype, read as if flat
        full = x.size - x.size % lanes(x)
        for i in range(0, full, lanes(x)):
            store(out, i, load(x, i) * w)            # a scalar operand is rounded to the vector's dtype and broadcast
        tail = first_lanes(x, x.size - full)         # a mask: the lanes of the last, partial vector
        store_masked(out, full, load_masked(x, full, tail, 0.0) * w, tail)

    scale(as_kernel_array(x), w, out)

Memory: `load(x, i)`, `store(x, i, v)` at element i, unaligned, no bounds check; `load_masked(x, i, mask, fill)` and
`store_masked(x, i, v, mask)` touch only the mask's lanes. `pointer(x, i)` points at element i of an array (its memory
read as flat) or of a pointer; `pointer_at(address, like)` makes one of an integer address, `aligned(x)` one at x's
first cache line; p[i] reads and writes one element; `prefetch(x, i)` and `prefetch_write(x, i)` are hints.
`wide_pointer(x, i)` is a pointer whose vectors span 4 registers: sums in 4 independent chains and polynomials
interleaved, without waiting for each result.
Values: `broadcast(like, scalar)`; + - * / and unary -; < <= > >= == != give masks, joined by & | ~;
`select(mask, a, b)`; `fma(a, b, c)`; `absolute`, `copysign`; `first_lanes(like, n)` is the mask of the lanes below n.
Across lanes: `reduce_add`, `reduce_greatest` (NaN may be lost), each in a fixed tree order.
`exp`, `erf`, `tanh` and the activations are in math.py.

One specialisation per dtype: give kernels arrays from `as_kernel_array`; for strided views give addresses
(array.ctypes.data), strides in elements, and any typed scalar (np.float32(scale)) as `like`.
"""

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from ..memory import CACHE_LINE
from .codegen import (
    INT32,
    WidePointer,
    as_vector_pointer,
    call_llvm,
    check_memory,
    common_vec,
    dtype_of,
    element_bytes,
    element_pointer,
    emit_fma,
    emit_prefetch,
    mask_of,
    shuffle,
    splat,
    vec_of,
)

# --- shapes and memory ----------------------------------------------------------------------------


@intrinsic
def lanes(typingctx, like):
    """Return the elements per vector of like's dtype, a constant in compiled code."""
    count = vec_of(like).count

    return types.intp(like), lambda context, builder, sig, args: context.get_constant(types.intp, count)


@intrinsic
def itemsize(typingctx, like):
    """Return the bytes per element of like's dtype, a constant in compiled code."""
    size = dtype_of(like).bitwidth // 8

    return types.intp(like), lambda context, builder, sig, args: context.get_constant(types.intp, size)


@intrinsic
def pointer(typingctx, source, index):
    """Point at element `index` of a C-contiguous array (as flat memory) or of another pointer."""
    check_memory(source)

    def codegen(context, builder, sig, args):
        return element_pointer(context, builder, source, *args)

    return types.CPointer(source.dtype)(source, types.intp), codegen


@intrinsic
def wide_pointer(typingctx, source, index):
    """Like `pointer`, but the vectors loaded from it, and its `lanes`, are those of 4 registers."""
    check_memory(source)

    def codegen(context, builder, sig, args):
        return element_pointer(context, builder, source, *args)

    return WidePointer(source.dtype)(source, types.intp), codegen


@intrinsic
def pointer_at(typingctx, address, like):
    """Convert the integer `address` to a pointer to elements of like's dtype."""
    result = types.CPointer(dtype_of(like))

    def codegen(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.intp, like), codegen


@intrinsic
def pointer_as(typingctx, source, like):
    """Convert a pointer to one to elements of like's dtype."""
    result = types.CPointer(dtype_of(like))

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(source, like), codegen


@intrinsic
def aligned(typingctx, array):
    """Point at the first element of a C-contiguous array on a cache line; the array needs a spare line at its end.

    A pointer does not keep the array alive: take it in a helper that the array is an argument of.
    """
    check_memory(array)

    def codegen(context, builder, sig, args):
        start = element_pointer(context, builder, array, args[0], ir.IntType(64)(0))
        address = builder.ptrtoint(start, ir.IntType(64))
        up = builder.and_(builder.add(address, address.type(63)), address.type(-64))
        return builder.inttoptr(up, start.type)

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def load(typingctx, source, index):
    """Load the vector that starts at element `index`."""
    check_memory(source)
    vec = vec_of(source)

    def codegen(context, builder, sig, args):
        at = element_pointer(context, builder, source, *args)
        return builder.load(as_vector_pointer(builder, at, vec), align=element_bytes(vec))

    return vec(source, types.intp), codegen


@intrinsic
def store(typingctx, target, index, value):
    """Write a vector from element `index` on."""
    check_memory(target)
    vec = vec_of(target)

    def codegen(context, builder, sig, args):
        at = element_pointer(context, builder, target, *args[:2])
        builder.store(args[2], as_vector_pointer(builder, at, vec), align=element_bytes(vec))
        return context.get_dummy_value()

    return types.void(target, types.intp, vec), codegen


@intrinsic
def load_masked(typingctx, source, index, mask, fill):
    """Like `load` in the mask's lanes; the others are `fill` and their memory is not touched."""
    check_memory(source)
    vec = vec_of(source)

    def codegen(context, builder, sig, args):
        at = as_vector_pointer(builder, element_pointer(context, builder, source, *args[:2]), vec)
        arguments = [at, INT32(element_bytes(vec)), args[2], args[3]]
        return call_llvm(builder, f"llvm.masked.load.{vec.suffix}.p0", vec.llvm, arguments)

    return vec(source, types.intp, mask_of(vec), vec), codegen


@intrinsic
def store_masked(typingctx, target, index, value, mask):
    """Like `store` in the mask's lanes; the other memory is not touched."""
    check_memory(target)
    vec = vec_of(target)

    def codegen(context, builder, sig, args):
        at = as_vector_pointer(builder, element_pointer(context, builder, target, *args[:2]), vec)
        arguments = [args[2], at, INT32(element_bytes(vec)), args[3]]
        call_llvm(builder, f"llvm.masked.store.{vec.suffix}.p0", ir.VoidType(), arguments)
        return context.get_dummy_value()

    return types.void(target, types.intp, vec, mask_of(vec)), codegen


@intrinsic
def prefetch(typingctx, source, index):
    """Hint that the vector at element `index` will be read soon; any address is safe."""
    check_memory(source)
    vec = vec_of(source)

    def codegen(context, builder, sig, args):
        at = element_pointer(context, builder, source, *args)
        for line in range(0, vec.count, CACHE_LINE // element_bytes(vec)):
            emit_prefetch(builder, builder.gep(at, [args[1].type(line)]))
        return context.get_dummy_value()

    return types.void(source, types.intp), codegen


@intrinsic
def prefetch_write(typingctx, target, index):
    """Hint that the cache line of element `index` will be written soon; any address is safe."""
    check_memory(target)

    def codegen(context, builder, sig, args):
        emit_prefetch(builder, element_pointer(context, builder, target, *args), write=True)
        return context.get_dummy_value()

    return types.void(target, types.intp), codegen


@intrinsic
def first_lanes(typingctx, like, count):
    """Return the mask of the first `count` lanes: none for count <= 0, all from lanes(like) on."""
    mask = mask_of(like)

    def codegen(context, builder, sig, args):
        n = args[1]
        for symbol, bound in (("<", n.type(0)), (">", n.type(mask.count))):  # so that it fits 32 bits
            n = builder.select(builder.icmp_signed(symbol, n, bound), bound, n)
        index = ir.Constant(ir.VectorType(INT32, mask.count), list(range(mask.count)))
        return builder.icmp_signed("<", index, splat(builder, builder.trunc(n, INT32), mask.count))

    return mask(like, types.intp), codegen


# --- arithmetic -----------------------------------------------------------------------------------


@intrinsic
def broadcast(typingctx, like, scalar):
    """Return a vector of the scalar, rounded to like's dtype."""
    vec = vec_of(like)

    return vec(like, vec), lambda context, builder, sig, args: args[1]


@intrinsic
def fma(typingctx, a, b, c):
    """Return a * b + c with one rounding (two on CPUs without FMA); at least one operand is a vector."""
    vec = common_vec(a, b, c)
    if vec is None:
        raise TypingError(f"fma: expected vectors of one type and scalars, got {a}, {b}, {c}")

    return vec(vec, vec, vec), lambda context, builder, sig, args: emit_fma(builder, vec, *args)


@intrinsic
def select(typingctx, mask, a, b):
    """Return a where the mask is set, else b."""
    vec = common_vec(a, b)
    if vec is None or mask != mask_of(vec):
        raise TypingError(f"select: expected a mask and two vectors (or one and a scalar), got {mask}, {a}, {b}")

    return vec(mask, vec, vec), lambda context, builder, sig, args: builder.select(*args)


def _of_llvm(name, *operands):
    """Return the signature and the code of an operation that LLVM has for vectors of any width."""
    vec = common_vec(*operands)
    if vec is None:
        raise TypingError(f"{name}: expected vectors of one type, got {operands}")

    def codegen(context, builder, sig, args):
        return call_llvm(builder, f"llvm.{name}.{vec.suffix}", vec.llvm, list(args))

    return vec(*[vec] * len(operands)), codegen


@intrinsic
def absolute(typingctx, a):
    """Return |a|."""
    return _of_llvm("fabs", a)


@intrinsic
def copysign(typingctx, a, b):
    """Return the magnitude of a with the sign of b."""
    return _of_llvm("copysign", a, b)


# --- across lanes ---------------------------------------------------------------------------------


def _reduce(builder, vec, value, combine):
    """Combine halves until one lane is left: the same tree on every CPU with this vector width."""
    count = vec.count
    while count > 1:
        count //= 2
        low, high = (shuffle(builder, value, value, range(at, at + count)) for at in (0, count))
        value = combine(low, high, count)
    return builder.extract_element(value, INT32(0))


@intrinsic
def reduce_add(typingctx, value):
    """Return the sum of all lanes, as a scalar."""

    def codegen(context, builder, sig, args):
        add = builder.add if isinstance(value.dtype, types.Integer) else builder.fadd
        return _reduce(builder, value, args[0], lambda low, high, count: add(low, high))

    return value.dtype(value), codegen


@intrinsic
def reduce_greatest(typingctx, value):
    """Return the greatest lane, as a scalar. NaN may be lost: keeping it takes five instructions a step, not one."""

    def codegen(context, builder, sig, args):
        def combine(low, high, count):
            return builder.select(builder.fcmp_ordered(">", low, high), low, high)

        return _reduce(builder, value, args[0], combine)

    return value.dtype(value), codegen
