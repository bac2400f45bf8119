"""The conformance cases through the public functions over CuPy's arrays, with the CUDA kernels running in the emulator.

The GPU's turn is in conformance/test_conformance.py. Here each case runs under one schedule (test_cuda_*.py compare the
schedules) and in one of the memory layouts in turns.
"""

from itertools import cycle, product

import pytest

from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.kernels.arrays import DTYPES, LAYOUTS
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, assert_conforms, on_disk

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_without_a_driver(operation, dtype):
    with driverless():
        for case, layout in zip(CASES[operation].values(), cycle(LAYOUTS), strict=False):
            assert_conforms(case, operation, "cupy", DTYPES[dtype], [layout])
