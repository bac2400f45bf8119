"""The cases under pytest-benchmark: `pytest -n0 bench/ops --benchmark-only`.

Each result is checked against the reference before it is timed. Variants are timed one after another here: for ratios
use `python -m bench.ops`, which interleaves them.
"""

import importlib

import numpy as np
import pytest

from bench.ops import calls
from bench.ops.cases import MODEL_SIZES, cases

DTYPE = np.dtype(np.float32)


@pytest.mark.parametrize("backend", calls.BACKENDS)
@pytest.mark.parametrize("case", [case for size in MODEL_SIZES for case in cases(size)], ids=lambda case: case.id)
def test_speed(case, backend, benchmark):
    reason = calls.unavailable_reason(case, backend, DTYPE)
    if reason is not None:
        pytest.skip(reason)
    inputs = calls.make_inputs(case, DTYPE)
    call = calls.bind(case, inputs, backend)
    calls.check(call(), calls.expected_results(case, inputs), DTYPE)
    benchmark.group = case.id
    benchmark.extra_info.update(bytes_moved=case.elements * DTYPE.itemsize, flops=case.flops)
    benchmark(_synchronised(call) if backend == "cupy" else call)


def _synchronised(call):
    """The call and the end of its work: CuPy returns before the GPU is done."""
    stream = importlib.import_module("cupy").cuda.get_current_stream()

    def call_and_wait():
        call()
        stream.synchronize()

    return call_and_wait
