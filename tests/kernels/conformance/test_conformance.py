"""The reference held to an oracle and finite differences, and every backend to the reference."""

from itertools import cycle, islice, product

import numpy as np
import pytest

from bench.ops import operations
from bench.ops.operations import folder
from tests.kernels import oracles
from tests.kernels.arrays import DTYPES, HOST_LAYOUTS, LAYOUTS
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, KERNELS, assert_conforms, on_disk, results
from tests.kernels.finite_differences import assert_gradients
from tests.tolerances import assert_close

TABLES = {"position_key", "position_query", "segment_scores"}


def has_tables(case):
    return bool(case.arguments.keys() & TABLES)


def marks_of(backend, dtype):
    """Numba takes a minute and a half to compile all operations in float64; the definition in 16 bits has bfloat16."""
    return [pytest.mark.slow] if (backend, dtype) in (("numba", "float64"), ("numpy", "float16")) else []


def check(subtests, operation, backend, dtype, cases):
    layouts = islice(cycle(LAYOUTS if backend == "cupy" else HOST_LAYOUTS), list(DTYPES).index(dtype), None)
    for case, layout in zip(cases, layouts, strict=False):
        with subtests.test(f"{case.name}, {layout}"):
            assert_conforms(case, operation, backend, DTYPES[dtype], [layout])


@pytest.mark.parametrize("operation, with_tables, backend, dtype", [
    pytest.param(*chosen, backend, dtype, marks=marks_of(backend, dtype))
    for backend in ("numpy", "numba")
    for chosen in (*((name, False) for name in on_disk(backend)), ("attention", True))  # which take longest
    for dtype in DTYPES_OF[backend]
])  # fmt: skip
def test_on_cpu(subtests, operation, with_tables, backend, dtype):
    cases = [case for case in CASES[operation].values() if has_tables(case) == with_tables]
    check(subtests, operation, backend, dtype, cases)


@pytest.mark.gpu
@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_on_gpu(subtests, operation, dtype):
    check(subtests, operation, "cupy", dtype, CASES[operation].values())


def test_every_operation_is_complete():
    operations_on_disk = {path.parent.name for path in KERNELS.glob("*/reference.py")}
    # these change their arguments: test_updates.py, test_cast.py, test_clip_norm.py
    updates = {"adam_update", "cast", "clip_norm", "muon_update"}
    on_cpu = {"nearest_codes"}  # alone; of integers: test_nearest_codes.py
    assert operations_on_disk == {*map(folder, CASES), *updates, *on_cpu}
    assert on_disk("numba") == on_disk("cupy") == [*CASES]
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


def floats(case):
    """The floating arrays among the arguments, by name."""
    arrays = {name: it for name, it in case.arguments.items() if isinstance(it, np.ndarray)}
    return {name: array for name, array in arrays.items() if array.dtype == np.float64}


def cases(operation, wanted):
    return [case for case in CASES[operation].values() if wanted(case)]


OPERATIONS = [name for name in CASES if name != "attention"]
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


def has_oracle(case):
    return case.arguments.get("reduction", "none") == "none"


def has_gradient(case):
    """All is finite; a linear map is differentiated without the activation that may be fused with it."""
    is_fused = "weight" in case.arguments and case.arguments.get("activation") is not None
    are_finite = all(np.isfinite(array).all() for array in floats(case).values())
    return are_finite and not case.forward_only and not is_fused


def is_small(case):
    return has_gradient(case) and sum(array.size for array in floats(case).values()) <= 200


@every_operation
def test_oracle(subtests, operation):
    for case in cases(operation, has_oracle):
        with subtests.test(case.name), np.errstate(invalid="ignore"):  # of infinities
            output = operations.forward(operation, case.arguments, "numpy")
            arguments = {name: it for name, it in case.arguments.items() if name != "reduction"}
            assert_close(output, getattr(oracles, operation)(**arguments), at_least=1)


@every_operation
def test_finite_differences(subtests, operation):
    for case in cases(operation, is_small):
        with subtests.test(case.name):
            assert_gradients(operation, case.arguments)
