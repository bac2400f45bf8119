"""Targets of the tests of CUDA launchers: always the CPU emulator, and a GPU where available.

    def test_softmax(cuda):                                           # a fixture of every test of this folder
        output = cuda.run(softmax_cuda.softmax, input, -1)            # NumPy arrays in, NumPy arrays out

In the emulator `run` calls the launcher under three schedules and requires the same bits of all: a result that depends
on the order of the warps is a race. (Our kernels use no floating-point atomics.)
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import _cuda
from bertcore.kernels.dispatch import unavailable_reason
from tests import cuda_emulator
from tests.kernels.arrays import to_gpu

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
TARGETS = ["emulator"]
if unavailable_reason("cupy") is None:
    TARGETS.append(pytest.param("gpu", marks=pytest.mark.gpu))


SCHEDULES = cuda_emulator.SCHEDULES[1:]  # in turns, one step each, the warps cannot get far ahead of each other


class EmulatorTarget:
    """Runs launchers in the emulator; `launches` are those of the last `run` (see cuda_emulator's Launch)."""

    def __init__(self, arch=80):
        self.arch = arch
        self.launches = []

    def run(self, function, *args):
        results = {}
        for schedule in SCHEDULES:
            with _cuda.use_runtime(cuda_emulator.Emulator(schedule, arch=self.arch)) as emulator:
                results[schedule] = function(*args)
            self.launches = emulator.launches
        first = SCHEDULES[0]
        for schedule, result in results.items():
            assert _same_bits(results[first], result), (
                f"schedules {first} and {schedule} give different results: a race"
            )
        return results[first]


class GPUTarget:
    """Runs launchers on the GPU with copies of the arrays."""

    launches = None  # not recorded

    def run(self, function, *args):
        import cupy

        result = function(*(to_gpu(arg) if isinstance(arg, np.ndarray) else arg for arg in args))
        if isinstance(result, tuple):
            return tuple(None if part is None else cupy.asnumpy(part) for part in result)
        return cupy.asnumpy(result)


def _same_bits(one, other):
    parts = zip(*(part if isinstance(part, tuple) else (part,) for part in (one, other)), strict=True)
    return all(a is b is None or a.tobytes() == b.tobytes() for a, b in parts)


@contextmanager
def batch_invariance(wanted):
    """Make products on the GPU batch-invariant, or not, within the block."""
    before = kernels.is_batch_invariant()
    kernels.set_batch_invariant(wanted)
    try:
        yield
    finally:
        kernels.set_batch_invariant(before)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def wide(value):
    """Return floating arrays in float64, anything else unchanged."""
    is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
    return value.astype(np.float64) if is_float else value


@pytest.fixture(params=TARGETS)
def cuda(request):
    """An EmulatorTarget or a GPUTarget."""
    return GPUTarget() if request.param == "gpu" else EmulatorTarget()


class Place(NamedTuple):
    """A backend, and functions that copy an array to where it computes and back."""

    backend: str
    to: Callable = np.array
    back: Callable = np.asarray


@pytest.fixture(params=["numpy", "numba", "cupy"])
def place(request):
    """Each backend; the emulator computes CuPy's."""
    from tests.cuda_emulator.driverless import driverless

    if request.param != "cupy":
        yield Place(request.param)
        return
    with driverless():
        yield Place("cupy", to_gpu, lambda array: array.get())


@pytest.fixture
def gpu():
    """Two GPUs without a driver, the first of them the current one; kernels compute nothing."""
    from tests.cuda_emulator.driverless import driverless

    with driverless(emulated=False) as gpu:
        yield gpu
