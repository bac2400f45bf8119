"""Numba's defaults for this package: `helper` for functions called from kernels, `kernel` for what Python calls.

No fastmath flags: kernels say `fma` where they want one, so that a sum's rounding does not depend on what LLVM makes of
the loop around it, and infinities and NaN keep their meaning.

Measured (Numba 0.68, 2 cores): a parallel function compiles 0.35 s slower than its serial body and loads from a warm
cache in 3-12 ms (nothing of the 2 s of numba #8085 was seen); a process's very first load costs 0.2-0.4 s more, which
is Numba filling its registries. So parallel kernels are plain `prange` loops over tasks around a serial helper.
"""

import functools

import numba

from .cache import KernelCache
from .threads import THREADING_LAYER, one_at_a_time

_INNER = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def helper(function):
    """Compile a function that only kernels call. Not cached by itself: its code is part of the kernels'."""
    return numba.njit(**_INNER)(function)


def inline_helper(function):
    """A small helper that takes or returns vectors: always inlined, so that they stay in registers."""
    return numba.njit(**_INNER, forceinline=True)(function)


def kernel(function=None, *, parallel=False):
    """Compile a function that Python calls: cached on disk, without the GIL.

    A parallel kernel's last argument is the number of its tasks (`num_threads()` or fewer): it loops over
    `prange(tasks)`, or with 1 calls its body directly, which must not enter the pool (see threads.py).
    """
    if function is None:
        return functools.partial(kernel, parallel=parallel)
    compiled = numba.njit(nogil=True, error_model="numpy", parallel=parallel)(function)
    compiled._cache = KernelCache(function)  # what Numba's cache=True does, with a cache of ours
    return one_at_a_time(compiled) if parallel and THREADING_LAYER == "workqueue" else compiled
