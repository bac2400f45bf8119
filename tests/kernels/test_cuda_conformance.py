"""The conformance cases through the public functions, with the CUDA kernels running in the emulator.

The GPU's turn is in conformance/test_conformance.py. Here each case runs under one schedule (test_cuda_*.py compare the
schedules) and in two memory layouts.
"""

from itertools import product

import pytest

from bertcore.kernels import _cuda
from tests.cuda_emulator import Emulator, unavailable_reason
from tests.kernels.conformance import test_conformance as conformance
from tests.kernels.conformance.cases import CASES
from tests.kernels.strategies import DTYPES

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


@pytest.mark.parametrize("operation, dtype", list(product(conformance.on_disk("cupy"), conformance.DTYPES_OF["cupy"])))
def test_in_emulator(operation, dtype, monkeypatch):
    monkeypatch.setattr(conformance, "LAYOUTS", ("read_only", "slice"))
    computed_by = conformance.record_backends(monkeypatch)
    with _cuda.use_runtime(Emulator("random")):
        for case in CASES[operation].values():
            conformance.assert_conforms(case, operation, "cupy", DTYPES[dtype], computed_by)
