"""Code generators for tiles: a block of a matrix product held in registers, and the transpose of a block.

A tile is a (rows, vectors * lanes) block of the product, with one accumulator per element and one fused multiply-add
after the other along the depth: an element depends neither on the tile's shape nor on its neighbours, so a row gives
the same bits alone and in any batch.
"""

import functools
import math

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once
from numba.core.errors import TypingError
from numba.extending import intrinsic

from ..compile import isa
from ..memory import CACHE_LINE
from ..simd.codegen import (
    INT32,
    as_vector_pointer,
    element_bytes,
    emit_load,
    emit_prefetch,
    in_order,
    keep_loop_as_written,
    shuffle,
    vec_of,
)
from .dot import BLOCK, BLOCK_WORDS, GROUP, GroupDot, PairDot, dot_of

INT = ir.IntType(64)

# The vector registers hold the sums of a weight's largest tile, a row of its panel and a broadcast; 16 registers also a
# product of pairs (PairDot). Tiles of 4 rows and 3 vectors would spill them: int8 takes 1.5 times as long.
WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS = (8, 3) if isa.LEVEL.registers >= 32 else (6, 2)
# In `product_of_columns` and Muon, the rows of a tile are a power of two, which do not cross a cache line.
COLUMN_TILE_ROWS, COLUMN_PANEL_VECTORS = (8, 3) if isa.LEVEL.registers >= 32 else (4, 3)

# Cache lines that a fetching tile prefetches per step of the depth: enough of the panel for 16 rows; more do not help.
# A row of a panel is three lines with AVX-512, one with AVX2.
FETCHED_LINES = 2 if isa.LEVEL.vector_bytes == CACHE_LINE else 1
# Steps of the depth that a fetching tile prefetches its own panel ahead, into the first-level cache, with AVX-512: 1 to
# 8 % less time.
PANEL_AHEAD = 16
# Steps of the depth in one iteration of the loop of a tile of packed rows. Its panel is left to the hardware
# prefetcher, which follows one stream of rows and one of the panel.
PACKED_STEPS = 4


@functools.cache
def group_rows(itemsize):
    """Return the rows of a group of a left operand: whole tiles, and whole vectors so that it can be packed."""
    return math.lcm(WEIGHT_TILE_ROWS, isa.LEVEL.vector_bytes // itemsize)


def make_tile(rows, vectors):
    """Make an intrinsic that computes a (rows, vectors * lanes) tile of a @ b, all matrices given by pointers.

    tile(a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate): depth and the strides of a and b are in
    words (see dot.py; of floats a word is one element); columns of b and c are contiguous. Rows of a beyond last_row
    are not read (that row replaces them). c is overwritten, or added to.
    """

    @intrinsic
    def tile(typingctx, a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate):
        return _tile(rows, vectors, a, b, c)

    return tile


def make_fetching_tile(rows, vectors, packed=False):
    """Make a tile that also prefetches the next operands: tile(..., accumulate, ahead, ahead_step).

    At each step of the depth (each PACKED_STEPS of packed rows) it prefetches FETCHED_LINES lines into the second-level
    cache, from the address `ahead` on and `ahead_step` bytes further each step; any address is safe.

    `packed` is for rows written by `pack_rows`: a_row is 1 and a_column `rows`, whatever is given, and all rows exist.
    """

    @intrinsic
    def tile(typingctx, a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate, ahead, ahead_step):
        return _tile(rows, vectors, a, b, c, types.intp, types.intp, packed=packed)

    return tile


def make_widening_tile(rows, vectors):
    """Make a fetching tile that also writes b, widened, as it multiplies it: tile(..., ahead, ahead_step, wide).

    Row after row of b goes to `wide`, each word as its parts, one row of them after the other (dot.py). b may be a
    panel of groups (panels.py).
    """

    @intrinsic
    def tile(typingctx, a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate, ahead, ahead_step, wide):
        return _tile(rows, vectors, a, b, c, types.intp, types.intp, wide)

    return tile


def make_output_tile(rows, vectors, packed=False):
    """Make a fetching tile that writes results instead of sums: c = a @ b + before + bias + residual.

    tile(a, a_row, a_column, b, b_row, depth, c, c_row, before, before_row, has_before, bias, has_bias, residual,
    has_residual, ahead, ahead_step): all rows exist; `bias` is one row, `residual` has the rows of c, and the flags say
    which of the three exist. It needs no block of sums in memory, which saves noticeable time at small depths.
    """

    @intrinsic
    def tile(
        typingctx, a, a_row, a_column, b, b_row, depth, c, c_row, before, before_row, has_before, bias, has_bias,
        residual, has_residual, ahead, ahead_step,
    ):  # fmt: skip
        dot, intp, flag = _dot_of(a, b, c, are_prepared=True), types.intp, types.boolean

        def codegen(context, builder, sig, args):
            a, a_row, a_column, b, b_row, depth, c, c_row, *added, ahead, ahead_step = args
            before, before_row, has_before, bias, has_bias, residual, has_residual = added
            emitter = _TileEmitter(builder, dot, rows, vectors, packed=packed)
            sums = emitter.of(a, a_row, a_column, INT(rows - 1), b, b_row, depth, (ahead, ahead_step))
            for addend, row, is_there in (
                (before, before_row, has_before), (bias, INT(0), has_bias), (residual, c_row, has_residual)
            ):  # fmt: skip
                sums = emitter.plus(sums, addend, row, is_there)
            emitter.write(sums, c, c_row)
            return context.get_dummy_value()

        added = c, intp, flag, c, flag, c, flag
        return types.void(a, intp, intp, b, intp, intp, c, intp, *added, intp, intp), codegen

    return tile


def _dot_of(*matrices, are_prepared):
    if not all(isinstance(matrix, types.CPointer) for matrix in matrices):
        raise TypingError(f"tile: expected three pointers, got {', '.join(map(str, matrices))}")
    return dot_of(*matrices, are_prepared)


def _tile(rows, vectors, a, b, c, *others, packed=False):
    """Return the signature and code generator of a tile; `others` are the types of `ahead`, `ahead_step` and `wide`."""
    dot, intp = _dot_of(a, b, c, are_prepared=bool(others)), types.intp

    def codegen(context, builder, sig, args):
        a, a_row, a_column, last_row, b, b_row, depth, c, c_row, accumulate, *others = args
        emitter = _TileEmitter(builder, dot, rows, vectors, *others[2:], packed=packed)
        sums = emitter.of(a, a_row, a_column, last_row, b, b_row, depth, others[:2])
        emitter.write(emitter.plus(sums, c, c_row, accumulate), c, c_row)
        return context.get_dummy_value()

    return types.void(a, intp, intp, intp, b, intp, intp, c, intp, types.boolean, *others), codegen


def _smaller(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


class _TileEmitter:
    """Writes the LLVM code of one tile."""

    def __init__(self, builder, dot, rows, vectors, wide=None, packed=False):
        self.builder, self.dot, self.rows, self.vectors, self.wide = builder, dot, rows, vectors, wide
        self.packed = packed
        self.vec = dot.sums
        self.registers = vectors * dot.rows  # of words of b, and of sums of `dot.rows` rows
        self.scales = []  # of the current group of b
        if isinstance(dot, GroupDot):
            self.scales = [alloca_once(builder, self.vec.llvm) for _ in range(vectors)]
            self.offset = alloca_once(builder, INT)

    def _at(self, base, offset, j):
        """Return a pointer to vector j of the row that starts `offset` words after base."""
        return self._register_at(base, offset, j, self.vec.count)

    def _register_at(self, base, offset, j, count):
        element = self.builder.gep(base, [self.builder.add(offset, INT(j * count))])
        return self.builder.bitcast(element, ir.VectorType(base.type.pointee, count).as_pointer())

    def of(self, a, a_row, a_column, last_row, b, b_row, depth, prefetch):
        """Return the accumulators of the product of a and b."""
        builder = self.builder
        a, b = builder.bitcast(a, self.dot.left_word.as_pointer()), builder.bitcast(b, self.dot.word.as_pointer())
        if self.dot.rows == 2:
            a_rows = [builder.gep(a, [INT(i)]) for i in range(0, self.rows, 2)]
        elif self.packed:
            a_rows, a_column = [builder.gep(a, [INT(i)]) for i in range(self.rows)], INT(self.rows)
        else:
            rows = (_smaller(builder, INT(i), last_row) for i in range(self.rows))
            a_rows = [builder.gep(a, [builder.mul(row, a_row)]) for row in rows]
        sums = self._products((a_rows, a_column), (b, b_row), depth, prefetch)
        if self.dot.rows == 1:
            return sums
        pairs = (sums[at : at + self.registers] for at in range(0, len(sums), self.registers))
        return [row for pair in pairs for row in self.dot.by_row(builder, pair)][: self.rows * self.vectors]

    def _products(self, left, right, depth, prefetch):
        """Return the accumulators after a loop over the depth, row by row; zeros for a depth of 0."""
        (a_rows, a_column), (b, b_row) = left, right
        zero = ir.Constant(self.vec.llvm, [self.dot.zero] * self.vec.count)
        strides = INT(1), a_column, b_row, *prefetch[1:]
        state = [INT(0), INT(0), INT(0), *prefetch[:1]], [zero] * (len(a_rows) * self.registers)
        if self.packed and not isinstance(self.dot, PairDot):  # four steps of pairs would spill sums
            rest = self.builder.urem(depth, INT(PACKED_STEPS))
            state = self._loop(*state, a_rows, b, strides, self.builder.sub(depth, rest), PACKED_STEPS)
        return self._loop(*state, a_rows, b, strides, depth, 1)[1]

    def _loop(self, counters, sums, a_rows, b, strides, end, steps):
        """Return counters and accumulators after a loop up to step `end` of the depth, some steps in each iteration.

        The counters are the step, the words of a and of b, and the address to prefetch, if any.
        """
        builder = self.builder
        before, loop, after = builder.block, builder.append_basic_block("depth"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", counters[0], end), loop, after)
        builder.position_at_end(loop)
        at, new = ([builder.phi(value.type) for value in values] for values in (counters, sums))
        phis = [*at, *new]
        for address in at[3:]:
            self._fetch(address)
        for _ in range(steps):
            new = self._step(at, new, a_rows, b, strides)
            at = [builder.add(place, stride) for place, stride in zip(at, strides, strict=True)]
        turn = builder.block
        for phi, first, value in zip(phis, [*counters, *sums], [*at, *new], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, turn)
        # If LLVM unrolled the loop, broadcasts of two steps would not fit the registers: half the speed.
        keep_loop_as_written(builder, builder.cbranch(builder.icmp_signed("<", at[0], end), loop, after))
        builder.position_at_end(after)
        results = [builder.phi(phi.type) for phi in phis]
        for result, first, value in zip(results, [*counters, *sums], [*at, *new], strict=True):
            result.add_incoming(first, before)
            result.add_incoming(value, turn)
        return results[: len(counters)], results[len(counters) :]

    def _fetch(self, address):
        for line in range(FETCHED_LINES):
            at = self.builder.add(address, INT(line * CACHE_LINE))
            emit_prefetch(self.builder, self.builder.inttoptr(at, ir.IntType(8).as_pointer()), level=2)

    def _step(self, at, sums, a_rows, b, strides):
        """Return the accumulators after one more step of the depth."""
        k, a_at, b_at, *fetched = at
        b_from = self.builder.add(b_at, self._enter_group(k, b)) if self.scales else b_at
        if fetched and not self.packed and isa.LEVEL.vector_bytes == CACHE_LINE:
            self._fetch_panel(b, b_from, strides[2])
        return self._multiply_add(sums, a_rows, a_at, b, b_from, k)

    def _fetch_panel(self, b, b_at, b_row):
        builder = self.builder
        ahead = builder.gep(builder.gep(b, [builder.mul(b_row, INT(PANEL_AHEAD))]), [b_at])
        first = builder.bitcast(ahead, ir.IntType(8).as_pointer())
        for at in range(0, self.vectors * isa.LEVEL.vector_bytes, CACHE_LINE):
            emit_prefetch(builder, builder.gep(first, [INT(at)]))

    def _enter_group(self, k, b):
        """Return the bytes of scales before row k of a panel of groups; load a group's scales at its first row."""
        builder, count, width = self.builder, self.vec.count, self.vec.count * self.vectors
        with builder.if_then(builder.icmp_unsigned("==", builder.urem(k, INT(GROUP)), INT(0))):
            ahead = builder.mul(builder.add(builder.udiv(k, INT(BLOCK)), INT(1)), INT(4 * width))  # of scales
            builder.store(ahead, self.offset)
            place = builder.udiv(builder.urem(k, INT(BLOCK)), INT(GROUP))
            first = builder.mul(builder.udiv(k, INT(BLOCK)), INT(BLOCK_WORDS * 4 * width))
            first = builder.add(first, builder.mul(place, INT(2 * width)))
            for j, scale in enumerate(self.scales):
                at = builder.gep(b, [builder.add(first, INT(2 * j * count))])
                halves = builder.load(builder.bitcast(at, ir.VectorType(ir.IntType(16), count).as_pointer()), align=2)
                bits = builder.zext(halves, ir.VectorType(INT32, count))
                bits = builder.shl(bits, ir.Constant(bits.type, [16] * count))
                builder.store(builder.bitcast(bits, self.vec.llvm), scale)
        return builder.load(self.offset)

    def _multiply_add(self, old, a_rows, a_at, b, b_at, k):
        builder, dot, sums = self.builder, self.dot, list(old)
        for part in range(dot.parts):
            if dot.rows == 2:
                self._multiply_pairs(sums, [builder.gep(row, [a_at]) for row in a_rows], b, b_at)
                continue
            # Words are loaded again for each part: in registers they would displace sums.
            places = (self._at(b, b_at, j) for j in range(self.vectors))
            words = [emit_load(builder, at, element_bytes(self.vec), is_again=part > 0) for at in places]
            b_row = [dot.right(builder, word, part) for word in words]
            if self.scales:
                b_row = [builder.fmul(value, builder.load(at)) for value, at in zip(b_row, self.scales, strict=True)]
            if self.wide is not None:
                self._store_row(b_row, builder.add(builder.mul(k, INT(dot.parts)), INT(part)))
            for i, row in enumerate(a_rows):
                factor = dot.left(builder, builder.gep(row, [a_at]), part)
                for j in range(self.vectors):
                    at = i * self.vectors + j
                    sums[at] = dot.add(builder, factor, b_row[j], sums[at])
        return sums

    def _multiply_pairs(self, sums, starts, b, b_at):
        """Add the products of pairs of rows (MatrixDot) with two registers of b after the other."""
        builder, dot = self.builder, self.dot
        pairs = [dot.left(builder, start, 0) for start in starts]
        for first in range(0, self.registers, 2):
            places = [self._register_at(b, b_at, j, self.vec.count // 2) for j in (first, first + 1)]
            columns = [dot.right(builder, builder.load(at, align=element_bytes(self.vec)), 0) for at in places]
            for i, pair in enumerate(pairs):
                for j, words in enumerate(columns, i * self.registers + first):
                    sums[j] = dot.add(builder, pair, words, sums[j])
            sums[j] = in_order(builder, sums[j])

    def _store_row(self, values, row):
        builder = self.builder
        wide = builder.bitcast(self.wide, self.vec.llvm.element.as_pointer())
        start = builder.mul(row, INT(self.vectors * self.vec.count))
        for j, value in enumerate(values):
            value = builder.bitcast(value, self.vec.llvm)
            builder.store(value, self._at(wide, start, j), align=element_bytes(self.vec))

    def plus(self, sums, addend, row, is_there):
        """Return the sums plus the rows of `addend` if they exist."""
        builder = self.builder
        before, add, after = builder.block, builder.append_basic_block("add"), builder.append_basic_block("added")
        builder.cbranch(is_there, add, after)
        builder.position_at_end(add)
        totals = [
            self.dot.plus(builder, builder.load(at, align=element_bytes(self.vec)), value)
            for value, at in zip(sums, self._places(addend, row), strict=True)
        ]
        builder.branch(after)
        builder.position_at_end(after)
        results = [builder.phi(self.vec.llvm) for _ in sums]
        for phi, value, total in zip(results, sums, totals, strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(total, add)
        return results

    def write(self, sums, c, c_row):
        """Store the sums in the rows of c."""
        for value, at in zip(sums, self._places(c, c_row), strict=True):
            self.builder.store(value, at, align=element_bytes(self.vec))

    def _places(self, base, row):
        """Yield pointers to the vectors of the tile, row by row."""
        for i in range(self.rows):
            offset = self.builder.mul(row, INT(i))
            for j in range(self.vectors):
                yield self._at(base, offset, j)


def _interleaved(builder, rows, count):
    """Return vectors with the elements of as many rows column by column; `count` elements each."""
    half, lanes = len(rows) // 2, count // 2
    lows, highs = ([lane + at for i in range(lanes) for lane in (i, i + count)] for at in (0, lanes))
    for _ in range(len(rows).bit_length() - 1):  # interleaving row i with row i + half, log2 times over
        pairs = [(rows[i], rows[i + half]) for i in range(half)]
        rows = [shuffle(builder, a, b, order) for a, b in pairs for order in (lows, highs)]
    return rows


def _load_rows(builder, source, stride, last_row, count, vec):
    """Load the first vector of each of `count` rows; last_row replaces those beyond it."""
    starts = (builder.mul(stride, _smaller(builder, INT(i), last_row)) for i in range(count))
    places = [as_vector_pointer(builder, builder.gep(source, [start]), vec) for start in starts]
    return [builder.load(at, align=element_bytes(vec)) for at in places]


@intrinsic
def transpose_block(typingctx, source, source_row, last_row, target, target_row):
    """Write the transpose of a (lanes, lanes) block; rows are contiguous, their strides in elements.

    Rows of the source beyond last_row are not read (that row, whose number may be negative, replaces them).
    """
    vec = vec_of(source)

    def codegen(context, builder, sig, args):
        source, source_row, last_row, target, target_row = args
        rows = _load_rows(builder, source, source_row, last_row, vec.count, vec)
        for i, value in enumerate(_interleaved(builder, rows, vec.count)):
            at = builder.gep(target, [builder.mul(target_row, INT(i))])
            builder.store(value, as_vector_pointer(builder, at, vec), align=element_bytes(vec))
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp), codegen


def make_row_packer(count):
    """Make an intrinsic that writes a vector of each of `count` rows, a power of two, column by column.

    pack(source, source_row, last_row, target): as `transpose_block` reads them; (lanes, count) elements are written.
    """

    @intrinsic
    def pack(typingctx, source, source_row, last_row, target):
        vec = vec_of(source)

        def codegen(context, builder, sig, args):
            source, source_row, last_row, target = args
            rows = _load_rows(builder, source, source_row, last_row, count, vec)
            for i, value in enumerate(_interleaved(builder, rows, vec.count)):
                at = builder.gep(target, [INT(i * vec.count)])
                builder.store(value, as_vector_pointer(builder, at, vec), align=element_bytes(vec))
            return context.get_dummy_value()

        return types.void(source, types.intp, types.intp, target), codegen

    return pack
