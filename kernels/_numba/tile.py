"""Code generators for blocks: a block of a matrix product held in registers, and the transpose of a block.

A tile is a (rows, vectors * lanes) block of the product, one
accumulator per element and one fused multiply-add after the other along the depth: the result of an element depends
neither on the tile's shape nor on its neighbours, which is why a row gives the same bits alone and in any batch.
"""

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .codegen import as_vector_pointer, element_bytes, emit_fma, keep_loop_as_written, shuffle, splat, vec_of

INT = ir.IntType(64)


def make_tile(rows, vectors):
    """An intrinsic that computes a (rows, vectors * lanes) tile of a @ b, all matrices given by pointers of one dtype.

    tile(a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate): strides are in elements, columns of b and
    c are contiguous. Rows of a beyond last_row are not read (that row stands in for them). c is overwritten, or added
    to.
    """

    @intrinsic
    def tile(typingctx, a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate):
        if not (isinstance(a, types.CPointer) and a == b == c):
            raise TypingError(f"tile: expected three pointers of one dtype, got {a}, {b}, {c}")
        vec, intp = vec_of(a), types.intp

        def codegen(context, builder, sig, args):
            a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate = args
            a_rows = [builder.gep(a, [builder.mul(_smaller(builder, INT(i), last_row), a_row)]) for i in range(rows)]
            emitter = _TileEmitter(builder, vec, rows, vectors)
            sums = emitter.products(a_rows, a_column, b, b_row, depth)
            emitter.finish(sums, c, c_row, accumulate)
            return context.get_dummy_value()

        return types.void(a, intp, intp, intp, b, intp, intp, c, intp, types.boolean), codegen

    return tile


def _smaller(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


class _TileEmitter:
    """Writes the LLVM code of one tile."""

    def __init__(self, builder, vec, rows, vectors):
        self.builder, self.vec, self.rows, self.vectors = builder, vec, rows, vectors

    def _at(self, base, offset, j):
        """Pointer to vector j of the row that starts `offset` elements after base."""
        element = self.builder.gep(base, [self.builder.add(offset, INT(j * self.vec.count))])
        return as_vector_pointer(self.builder, element, self.vec)

    def products(self, a_rows, a_column, b, b_row, depth):
        """The accumulators after a loop over the depth, row by row; zeros when the depth is 0."""
        builder = self.builder
        before, loop, after = builder.block, builder.append_basic_block("depth"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", depth, INT(0)), loop, after)
        builder.position_at_end(loop)
        k, a_at, b_at = (builder.phi(INT) for _ in range(3))
        zero = ir.Constant(self.vec.llvm, [0.0] * self.vec.count)
        old = [builder.phi(self.vec.llvm) for _ in range(self.rows * self.vectors)]
        new = self._multiply_add(old, a_rows, a_at, b, b_at)
        steps = builder.add(k, INT(1)), builder.add(a_at, a_column), builder.add(b_at, b_row)
        for phi, first, following in zip(
            (k, a_at, b_at, *old), [INT(0)] * 3 + [zero] * len(old), (*steps, *new), strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(following, loop)
        # Unrolled, the broadcasts of two steps at once do not fit the registers: half the speed.
        keep_loop_as_written(builder, builder.cbranch(builder.icmp_signed("<", steps[0], depth), loop, after))
        builder.position_at_end(after)
        sums = [builder.phi(self.vec.llvm) for _ in new]
        for phi, value in zip(sums, new, strict=True):
            phi.add_incoming(zero, before)
            phi.add_incoming(value, loop)
        return sums

    def _multiply_add(self, old, a_rows, a_at, b, b_at):
        builder, vec = self.builder, self.vec
        b_row = [builder.load(self._at(b, b_at, j), align=element_bytes(vec)) for j in range(self.vectors)]
        new = []
        for i, row in enumerate(a_rows):
            factor = splat(builder, builder.load(builder.gep(row, [a_at])), vec.count)
            for j in range(self.vectors):
                new.append(emit_fma(builder, vec, factor, b_row[j], old[i * self.vectors + j]))
        return new

    def finish(self, sums, c, c_row, accumulate):
        """Write the sums to c, or add them to it."""
        with self.builder.if_else(accumulate) as (add, overwrite):
            with add:
                self._write(sums, c, c_row, lambda value, at: self.builder.fadd(self._load(at), value))
            with overwrite:
                self._write(sums, c, c_row, lambda value, at: value)

    def _load(self, at):
        return self.builder.load(at, align=element_bytes(self.vec))

    def _write(self, sums, c, c_row, combine):
        for index, value in enumerate(sums):
            i, j = divmod(index, self.vectors)
            at = self._at(c, self.builder.mul(c_row, INT(i)), j)
            self.builder.store(combine(value, at), at, align=element_bytes(self.vec))


@intrinsic
def transpose_block(typingctx, source, source_row, last_row, target, target_row):
    """Write the transpose of a (lanes, lanes) block; rows are contiguous, their strides in elements.

    Rows of the source beyond last_row are not read (that row, which may be a negative one, stands in for them).
    """
    vec = vec_of(source)

    def codegen(context, builder, sig, args):
        source, source_row, last_row, target, target_row = args

        def row(base, stride, i):
            return as_vector_pointer(builder, builder.gep(base, [builder.mul(stride, i)]), vec)

        def source_at(i):
            return row(source, source_row, _smaller(builder, INT(i), last_row))

        half = vec.count // 2
        lows, highs = ([lane + at for i in range(half) for lane in (i, i + vec.count)] for at in (0, half))
        rows = [builder.load(source_at(i), align=element_bytes(vec)) for i in range(vec.count)]
        for _ in range(vec.count.bit_length() - 1):  # interleaving row i with row i + half, log2 times over
            pairs = [(rows[i], rows[i + half]) for i in range(half)]
            rows = [shuffle(builder, a, b, order) for a, b in pairs for order in (lows, highs)]
        for i, value in enumerate(rows):
            builder.store(value, row(target, target_row, INT(i)), align=element_bytes(vec))
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp), codegen
