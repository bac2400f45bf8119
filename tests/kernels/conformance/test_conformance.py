"""Every implementation that is on disk against the reference in float64, over the cases of cases.py."""

from itertools import product

import numpy as np
import pytest

from bench.ops.operations import folder
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, KERNELS, assert_conforms, on_disk, results


def marks(backend, dtype, case):
    """Half a minute of compiling for each direction is slow."""
    has_tables = bool(case.arguments.keys() & {"position_key", "position_query", "segment_scores"})
    return [pytest.mark.slow] if has_tables and (backend, dtype) == ("numba", "float64") else []


@pytest.mark.parametrize(
    "operation, backend, dtype, case",
    [
        pytest.param(
            operation,
            backend,
            dtype,
            case,
            id=f"{operation}-{backend}-{dtype}-{case.name}",
            marks=marks(backend, dtype, case),
        )
        for backend in ("numpy", "numba")
        for operation, dtype in product(on_disk(backend), DTYPES_OF[backend])
        for case in CASES[operation].values()
    ],
)
def test_on_cpu(operation, backend, dtype, case):
    assert_conforms(case, operation, backend, DTYPES[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_on_gpu(operation, dtype):
    for case in CASES[operation].values():
        assert_conforms(case, operation, "cupy", DTYPES[dtype])


def test_every_operation_is_complete():
    """One folder per operation, each with its definition, its CPU and its GPU implementation."""
    operations_on_disk = {path.parent.name for path in KERNELS.glob("*/reference.py")}
    # adam_update changes its arguments: test_adam_update.py
    assert operations_on_disk == {*map(folder, CASES), "adam_update"}
    missing = [
        f"{operation}/{file}"
        for operation in sorted(operations_on_disk)
        for file in ("__init__.py", "reference.py", "cpu.py", "cuda.py", f"{operation}.cu")
        if not (KERNELS / operation / file).is_file()
    ]
    assert not missing


@pytest.mark.parametrize("operation", CASES)
def test_numpy_settings_do_not_reach_the_definition(operation):
    with np.errstate(all="raise"):
        for case in CASES[operation].values():
            results(case, operation, "numpy", np.float32, np.float32, "contiguous")
