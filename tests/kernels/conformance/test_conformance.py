"""Every implementation that is on disk against the reference in float64, over the cases of cases.py."""

from itertools import product

import numpy as np
import pytest

from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, KERNELS, assert_conforms, on_disk, results

# Half a minute of compiling for each direction.
SLOW = {("attention", "numba", "float64", "relative"): pytest.mark.slow}


@pytest.mark.parametrize(
    "operation, backend, dtype, name",
    [
        pytest.param(operation, backend, DTYPES[dtype], name, id=f"{operation}-{backend}-{dtype}-{name}", marks=marks)
        for backend in ("numpy", "numba")
        for operation, dtype in product(on_disk(backend), DTYPES_OF[backend])
        for name in CASES[operation]
        for marks in [SLOW.get((operation, backend, dtype, name.partition(" ")[0]), ())]
    ],
)
def test_on_cpu(operation, backend, dtype, name):
    assert_conforms(CASES[operation][name], operation, backend, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_on_gpu(operation, dtype):
    for case in CASES[operation].values():
        assert_conforms(case, operation, "cupy", DTYPES[dtype])


def test_every_operation_is_complete():
    """One folder per operation, each with its definition, its CPU and its GPU implementation."""
    operations_on_disk = {path.parent.name for path in KERNELS.glob("*/reference.py")}
    assert operations_on_disk == set(CASES)
    missing = [
        f"{operation}/{file}"
        for operation in sorted(operations_on_disk)
        for file in ("__init__.py", "reference.py", "cpu.py", "cuda.py", f"{operation}.cu")
        if not (KERNELS / operation / file).is_file()
    ]
    assert not missing


@pytest.mark.parametrize("operation", [it for it in CASES if it not in ("linear", "attention")])
def test_numpy_settings_do_not_reach_the_definition(operation):
    with np.errstate(all="raise"):
        for case in CASES[operation].values():
            results(case, operation, "numpy", np.float32, np.float32, "contiguous")
