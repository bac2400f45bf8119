"""Every implementation that is on disk against the reference in float64, over the cases of cases.py.

Each case is computed in one memory layout, which differs from dtype to dtype.
"""

from itertools import cycle, islice, product

import numpy as np
import pytest

from bench.ops.operations import folder
from tests.kernels.arrays import DTYPES, LAYOUTS
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, KERNELS, assert_conforms, on_disk, results

TABLES = {"position_key", "position_query", "segment_scores"}


def has_tables(case):
    return bool(case.arguments.keys() & TABLES)


def marks_of(backend, dtype):
    """Numba takes a minute and a half to compile all operations in float64; the definition in 16 bits has bfloat16."""
    return [pytest.mark.slow] if (backend, dtype) in (("numba", "float64"), ("numpy", "float16")) else []


def check(subtests, operation, backend, dtype, cases):
    layouts = islice(cycle(LAYOUTS), list(DTYPES).index(dtype), None)
    for case, layout in zip(cases, layouts, strict=False):
        with subtests.test(f"{case.name}, {layout}"):
            assert_conforms(case, operation, backend, DTYPES[dtype], [layout])


@pytest.mark.parametrize(
    "operation, backend, dtype",
    [
        pytest.param(operation, backend, dtype, id=f"{operation}-{backend}-{dtype}", marks=marks_of(backend, dtype))
        for backend in ("numpy", "numba")
        for operation, dtype in product(on_disk(backend), DTYPES_OF[backend])
    ],
)
def test_on_cpu(subtests, operation, backend, dtype):
    cases = [case for case in CASES[operation].values() if not has_tables(case)]
    check(subtests, operation, backend, dtype, cases)


@pytest.mark.parametrize(
    "backend, dtype",
    [
        pytest.param(backend, dtype, marks=marks_of(backend, dtype))
        for backend in ("numpy", "numba")
        for dtype in DTYPES_OF[backend]
    ],
)
def test_attention_with_tables(subtests, backend, dtype):
    check(subtests, "attention", backend, dtype, filter(has_tables, CASES["attention"].values()))


@pytest.mark.gpu
@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_on_gpu(subtests, operation, dtype):
    check(subtests, operation, "cupy", dtype, CASES[operation].values())


def test_every_operation_is_complete():
    operations_on_disk = {path.parent.name for path in KERNELS.glob("*/reference.py")}
    # these change their arguments: test_adam_update.py, test_cast.py, test_clip_norm.py, test_muon_update.py
    updates = {"adam_update", "cast", "clip_norm", "muon_update"}
    on_cpu = {"nearest_codes"}  # alone; of integers: test_nearest_codes.py
    assert operations_on_disk == {*map(folder, CASES), *updates, *on_cpu}
    missing = [
        f"{operation}/{pattern}"
        for operation in sorted(operations_on_disk)
        for pattern in ("__init__.py", "reference.py", "cpu*", "cuda*", f"**/{operation}.cu")
        if not ([*(KERNELS / operation).glob(pattern)] or (operation in on_cpu and "cu" in pattern))
    ]
    assert not missing


@pytest.mark.parametrize("operation", CASES)
def test_numpy_settings_do_not_reach_the_definition(operation):
    with np.errstate(all="raise"):
        for case in CASES[operation].values():
            results(case, operation, "numpy", np.float32, np.float32, "contiguous")
