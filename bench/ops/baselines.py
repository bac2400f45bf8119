"""Copies that move as many bytes as a case: about what a memory-bound operation can at best be as fast as.

A copy reads half of the bytes and writes half of them, into a fresh array as the operations do: the kernel hands out
new pages, which is a good part of the time of both. NumPy's copy runs on one thread; the threaded copy on as many as
the Numba kernels do. Below LEAST bytes there are no copies: what costs time there is the call itself.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import GpuClock, Variant

COPY, THREADED_COPY, GPU_COPY = "copy", "threaded copy", "GPU copy"
LEAST = 2**20


def host_copies(moved: int) -> dict[str, Variant]:
    """Copies in host memory that move `moved` bytes."""
    source = np.ones(moved // 2, np.uint8)
    return {COPY: Variant(source.copy), THREADED_COPY: Variant(_threaded_copy(source))}


def gpu_copy(moved: int) -> dict[str, Variant]:
    """A copy in the memory of the GPU that moves `moved` bytes."""
    cupy = importlib.import_module("cupy")
    return {GPU_COPY: Variant(cupy.ones(moved // 2, cupy.uint8).copy, GpuClock(cupy))}


def _threaded_copy(source: np.ndarray) -> Callable[[], np.ndarray]:
    copy, num_threads = _compiled_copy()

    def call() -> np.ndarray:
        output = np.empty_like(source)
        copy(source, output, num_threads())
        return output

    return call


@functools.cache
def _compiled_copy() -> tuple[Callable[..., None], Callable[[], int]]:
    import numba

    from bertcore.kernels import _numba

    @_numba.kernel(parallel=True)
    def copy(source: Any, output: Any, threads: Any) -> None:
        step = (source.size + threads - 1) // threads
        for task in numba.prange(threads):
            start = task * step
            output[start : start + step] = source[start : start + step]

    return copy, _numba.num_threads
