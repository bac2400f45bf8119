"""The nearest codes on the CPU: one pass over the corpus, in blocks that stay in the first-level cache for all queries.

A task searches a part of the corpus and keeps a heap of keys for each query. A key is one integer, and the order of
keys is that of the results: the distance, or minus the dot product, with the row in the lower 32 bits.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .._numba import LEVEL, as_kernel_array, by_types, helper, parallel_kernel
from .._numba.products.dot import Int8Dot
from .._numba.rows import flat, share, task_count
from .._numba.simd import pointer, reduce_add
from .._numba.simd.codegen import Vec, call_llvm
from . import reference

GRAIN = 1 << 18  # bytes compared
BLOCK = 1 << 14  # bytes of the corpus
LAST = np.iinfo(np.int64).max
_WORD, _SUMS = ir.IntType(64), Vec(types.int32, LEVEL.vector_bytes // 4)


def nearest_codes(query, corpus, top_k):
    """Return scores, int32, and rows, int64, (queries, kept)."""
    if not query.size or not corpus.size:
        return reference.nearest_codes(query, corpus, top_k)
    kept, tasks = min(top_k, len(corpus)), task_count(len(query) * corpus.size, GRAIN)
    keys = np.full((tasks, len(query), kept), LAST)
    _search(flat(query), as_kernel_array(corpus), keys, tasks)
    keys = np.sort(keys.swapaxes(0, 1).reshape(len(query), -1), axis=1)[:, :kept]
    scores = (keys >> 32).astype(np.int32)
    return scores if query.dtype == np.uint8 else -scores, keys & 0xFFFFFFFF


def _load(builder, start, at, kind):
    place = builder.bitcast(builder.gep(start, [at]), kind.as_pointer())
    return builder.load(place, align=1)


@intrinsic
def _differing_bits(typingctx, a, b, at):
    """Count the bits that differ in the 8 bytes from byte `at` on."""

    def codegen(context, builder, sig, args):
        words = [_load(builder, start, args[2], _WORD) for start in args[:2]]
        return call_llvm(builder, "llvm.ctpop.i64", _WORD, [builder.xor(*words)])

    return types.int64(a, b, types.intp), codegen


@intrinsic
def _no_products(typingctx):
    """Return a vector of sums that are 0."""
    return _SUMS(), lambda context, builder, sig, args: ir.Constant(_SUMS.llvm, None)


@intrinsic
def _add_products(typingctx, sums, a, b, at):
    """Add the products of a vector of bytes from byte `at` on; `a` is made unsigned by adding 128."""

    def codegen(context, builder, sig, args):
        dot, kind = Int8Dot(_SUMS), _SUMS.llvm
        left, right = (_load(builder, start, args[3], kind) for start in args[1:3])
        left, total = builder.xor(left, ir.Constant(kind, [0x80808080] * _SUMS.count)), args[0]
        for part in range(dot.parts):
            shift, mask = (ir.Constant(kind, [value] * _SUMS.count) for value in (8 * part, 0xFF))
            byte = left if dot.parts == 1 else builder.and_(builder.lshr(left, shift), mask)
            total = dot.add(builder, byte, dot.right(builder, right, part), total)
        return total

    return _SUMS(_SUMS, a, b, types.intp), codegen


def _differing_in(code, query, size, shift):
    whole = size - size % 8
    total = 0
    for at in range(0, whole, 8):
        total += _differing_bits(code, query, at)
    for at in range(whole, size):
        other = (code[at] ^ query[at]) & 0xFF
        while other:
            total += 1
            other &= other - 1
    return total


def _minus_product(code, query, size, shift):
    sums = _no_products()
    whole = size - size % BYTES
    for at in range(0, whole, BYTES):
        sums = _add_products(sums, code, query, at)
    total = shift - int(reduce_add(sums))
    for at in range(whole, size):
        total -= int(code[at]) * int(query[at])
    return total


BYTES = LEVEL.vector_bytes


@by_types(inline=True)
def _distance(code, query, size, shift):
    """Return the bits that differ, or minus the dot product; `shift` is `_shift` of the query."""
    return _minus_product if code.dtype == types.int8 else _differing_in


@helper
def _shift(query, size):
    """Return 128 times the sum of the bytes that vectors of `_add_products` multiply."""
    total = 0
    for at in range(size - size % BYTES):
        total += int(query[at])
    return 128 * total


@helper
def _keep(keys, key):
    """Replace the greatest key of a heap."""
    at, child = 0, 1
    while child < len(keys):
        if child + 1 < len(keys) and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= key:
            break
        keys[at] = keys[child]
        at, child = child, 2 * child + 1
    keys[at] = key


@parallel_kernel
def _search(query, corpus, keys, task, tasks):
    rows, size = corpus.shape
    step = max(1, BLOCK // size)
    end = share(rows, task + 1, tasks)
    for first in range(share(rows, task, tasks), end, step):
        for number in range(keys.shape[1]):
            heap, asked = keys[task, number], pointer(query, number * size)
            shift, worst = _shift(asked, size), heap[0]
            for row in range(first, min(first + step, end)):
                key = (_distance(pointer(corpus, row * size), asked, size, shift) << 32) | row
                if key < worst:
                    _keep(heap, key)
                    worst = heap[0]
