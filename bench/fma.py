"""The limits of this machine's vector and tile units: multiply-adds per second in register-only loops, by dtype."""

import time
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from bertcore.kernels._numba import LEVEL, aligned_empty, kernel
from bertcore.kernels._numba.amx import tiles
from bertcore.kernels._numba.products.dot import PairDot, dot_of
from bertcore.kernels._numba.simd import pointer
from bertcore.kernels._numba.simd.codegen import in_order

# A latency of 4 on 2 units needs 8 chains, one of 12 on 1 unit 12; with 2 operands they fit the registers.
CHAINS = 24 if LEVEL.registers >= 32 else 12
STEPS = 1 << 21  # about 3 ms, longer than a thread takes to wake


def fma_limit(threads: int, seconds: float = 1.0) -> float:
    """Return float32 FLOP per second of this many threads, the best of several samples."""
    return dot_limit((np.float32, np.float32, np.float32), threads, seconds)


def dot_limit(dtypes: tuple[type, type, type], threads: int, seconds: float = 1.0) -> float:
    """Return twice the multiply-adds per second of a dot product in one instruction, by dtypes of left, right and sums.

    Each lane multiplies a 32-bit word, or parts of one (products/dot.py).
    """
    left, right, _ = dtypes
    operands = np.ones((1, 64), left), np.ones((1, 64), right), np.zeros((threads, CHAINS * 16), dtypes[2])
    products = _multiply_add(*operands, 1, threads)  # compiles
    return 2 * products * STEPS * threads / _fastest(lambda: _multiply_add(*operands, STEPS, threads), seconds)


def tile_limit(is_int8: bool, threads: int, seconds: float = 1.0) -> float:
    """Return twice the multiply-adds per second of AMX's tiles, for int8 or bfloat16, the best of several samples.

    The tiles hold zeros, the fastest case, and none is loaded.
    """
    state, steps = aligned_empty((threads, tiles.STATE_SIZE), np.float32), STEPS // 64  # four products take 64 cycles
    _multiply_tiles(state, is_int8, 1, threads)  # compiles
    products = 4 * tiles.TILE_ELEMENTS * tiles.TILE_WORDS * (4 if is_int8 else 2)
    return 2 * products * steps * threads / _fastest(lambda: _multiply_tiles(state, is_int8, steps, threads), seconds)


def _fastest(call: Callable[[], object], seconds: float) -> float:
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


@kernel(parallel=True)
def _multiply_tiles(state, is_int8, steps, threads):
    """Multiply tiles in the pattern of amx/product.py."""
    for thread in prange(threads):
        own = pointer(state, thread * state.shape[1])
        tiles.begin_tiles(own)
        tiles.zero_tile(own, 0)
        tiles.zero_tile(own, 1)
        tiles.zero_tile(own, 2)
        tiles.zero_tile(own, 3)
        tiles.zero_tile(own, 4)
        tiles.zero_tile(own, 5)
        tiles.zero_tile(own, 6)
        tiles.zero_tile(own, 7)
        for _ in range(steps if is_int8 else 0):
            tiles.multiply_int8(own, 0, 4, 6)
            tiles.multiply_int8(own, 1, 4, 7)
            tiles.multiply_int8(own, 2, 5, 6)
            tiles.multiply_int8(own, 3, 5, 7)
        for _ in range(0 if is_int8 else steps):
            tiles.multiply_bfloat16(own, 0, 4, 6)
            tiles.multiply_bfloat16(own, 1, 4, 7)
            tiles.multiply_bfloat16(own, 2, 5, 6)
            tiles.multiply_bfloat16(own, 3, 5, 7)
        tiles.end_tiles()


@kernel(parallel=True)
def _multiply_add(left, right, sums, steps, threads):
    for thread in prange(threads):
        _run_chains(pointer(left, 0), pointer(right, 0), pointer(sums, thread * sums.shape[1]), steps)
    return _products(pointer(left, 0), pointer(right, 0), pointer(sums, 0))


@intrinsic
def _products(typingctx, left, right, sums):
    """Return the products of CHAINS instructions."""
    dot = dot_of(left, right, sums)
    in_word = max(32 // right.dtype.bitwidth, 1)
    count = CHAINS * dot.sums.count * in_word // dot.parts
    return types.intp(left, right, sums), lambda context, builder, sig, args: ir.IntType(64)(count)


@intrinsic
def _run_chains(typingctx, left, right, sums, steps):
    """Run chains of multiply-adds from different values, so that the compiler can neither merge nor solve them.

    A PairDot multiplies in an instruction of its own, which a fence repeats for each sum, as kernels do.
    """
    dot = dot_of(left, right, sums)

    def codegen(context, builder, sig, args):
        left, right, sums, steps = args
        word = builder.bitcast(left, dot.left_word.as_pointer())
        a = cgutils.alloca_once_value(builder, dot.left(builder, word, 0))
        words = builder.bitcast(right, ir.VectorType(dot.word, dot.sums.count).as_pointer())
        b = dot.right(builder, builder.load(words, align=4), 0)
        first = builder.bitcast(sums, dot.sums.llvm.as_pointer())
        places = [builder.gep(first, [ir.IntType(32)(chain)]) for chain in range(CHAINS)]
        totals = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
        with cgutils.for_range(builder, steps):
            for total in totals:
                if isinstance(dot, PairDot):
                    builder.store(in_order(builder, builder.load(a)), a)
                builder.store(dot.add(builder, builder.load(a), b, builder.load(total)), total)
        for total, place in zip(totals, places, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(left, right, sums, steps), codegen
