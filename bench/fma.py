"""The FMA limit: float32 multiply-adds per second of this machine's vector units in a register-only loop."""

import time

import numpy as np
from numba import prange

from bertcore.kernels._numba import helper, kernel
from bertcore.kernels._numba.simd import broadcast, fma, lanes, store

CHAINS = 12  # latency 4 on 2 units needs 8; 12 and 2 constants fit the 16 registers of AVX2
STEPS = 1 << 21  # some 3 ms, longer than a thread takes to wake


def fma_limit(threads: int, seconds: float = 1.0) -> float:
    """Return float32 FLOP per second of this many threads, the best of several samples."""
    out = np.empty((threads, 16), np.float32)  # a cache line each
    _multiply_add(out, np.float32(0.5), 1, threads)  # compiles
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        _multiply_add(out, np.float32(0.5), STEPS, threads)
        best = min(best, time.perf_counter() - start)
    return 2 * CHAINS * _lanes(out) * STEPS * threads / best


@kernel
def _lanes(like):
    return lanes(like)


@kernel(parallel=True)
def _multiply_add(out, factor, steps, threads):
    for thread in prange(threads):
        _chains(out, thread, factor, steps)


@helper
def _chains(out, thread, x, steps):
    """Run chains of multiply-adds from different values, so that the compiler can neither merge nor solve them.

    They converge to factor * a + 1 = a, far from infinities and denormals.
    """
    factor = broadcast(out, x)
    a, b, c, d = broadcast(out, x), broadcast(out, x + 1), broadcast(out, x + 2), broadcast(out, x + 3)
    e, f, g, h = broadcast(out, x + 4), broadcast(out, x + 5), broadcast(out, x + 6), broadcast(out, x + 7)
    i, j, k, l = broadcast(out, x + 8), broadcast(out, x + 9), broadcast(out, x + 10), broadcast(out, x + 11)  # noqa: E741
    for _ in range(steps):
        a, b, c, d = fma(a, factor, 1.0), fma(b, factor, 1.0), fma(c, factor, 1.0), fma(d, factor, 1.0)
        e, f, g, h = fma(e, factor, 1.0), fma(f, factor, 1.0), fma(g, factor, 1.0), fma(h, factor, 1.0)
        i, j, k, l = fma(i, factor, 1.0), fma(j, factor, 1.0), fma(k, factor, 1.0), fma(l, factor, 1.0)  # noqa: E741
    store(out, thread * 16, a + b + c + d + e + f + g + h + i + j + k + l)
