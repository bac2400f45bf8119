"""Every implementation that is on disk against the reference in float64, over the cases of cases.py."""

from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import dispatch
from bertcore.kernels.checks import BACKEND_DTYPES
from tests.kernels.conformance import operations
from tests.kernels.conformance.cases import CASES
from tests.kernels.cuda_support import to_gpu
from tests.kernels.strategies import DTYPES, LAYOUTS, normal, with_layout
from tests.tolerances import assert_close

KERNELS = Path(kernels.__file__).parent
DTYPES_OF = {"numpy": tuple(DTYPES), **BACKEND_DTYPES}

# Half a minute of compiling for each direction.
SLOW = {("attention", "numba", "float64", "relative"): pytest.mark.slow}


def on_disk(backend):
    """The operations that `backend` implements."""
    file = f"{dispatch.IMPLEMENTATIONS[backend]}.py"
    return [operation for operation in CASES if (KERNELS / operation / file).is_file()]


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
def test_on_cpu(operation, backend, dtype, name, monkeypatch):
    computed_by = record_backends(monkeypatch)
    assert_conforms(CASES[operation][name], operation, backend, dtype, computed_by)


@pytest.mark.gpu
@pytest.mark.parametrize("operation, dtype", list(product(on_disk("cupy"), DTYPES_OF["cupy"])))
def test_on_gpu(operation, dtype, monkeypatch):
    computed_by = record_backends(monkeypatch)
    for case in CASES[operation].values():
        assert_conforms(case, operation, "cupy", DTYPES[dtype], computed_by)


def assert_conforms(case, operation, backend, dtype, computed_by, layouts=LAYOUTS):
    """The backend gives what the reference gives in float64 for the same rounded values, whatever the memory layout."""
    exact = results(case, operation, "numpy", dtype, np.float64, "contiguous")
    computed_by.clear()
    for layout in layouts:
        found = results(case, operation, backend, dtype, dtype, layout)
        assert found and (found.keys() == exact.keys() or backend == "cupy"), "some results are missing"
        for key, array in found.items():
            check(f"{case.name}: {key} of {layout} arrays", array, exact[key], dtype)
    assert set(computed_by) == {backend}


def record_backends(monkeypatch):
    """The backend of every call from here on."""
    seen, compute = [], dispatch.Call.compute

    def spy(call, *args):
        seen.append(call.backend)
        return compute(call, *args)

    monkeypatch.setattr(dispatch.Call, "compute", spy)
    return seen


def results(case, operation, backend, rounding, dtype, layout):
    """{name: array} of a case whose floats are rounded to `rounding` and then handed over as `dtype`."""

    def prepare(value):
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == np.float64:
            with np.errstate(over="ignore"):
                value = value.astype(rounding).astype(dtype)
        return to_device(with_layout(value, layout), backend)

    given = {name: prepare(value) for name, value in case.arguments.items()}
    arguments = dict(given)
    forward_only = case.forward_only or (backend == "cupy" and not has_backward(operation))

    def grad(output):
        if forward_only:
            raise ForwardDone
        name = f"gradient {len(given)}"
        given[name] = prepare(normal(99, output.shape))
        before[name] = contents(given[name])
        return given[name]

    before = {name: contents(value) for name, value in given.items()}
    found = {}
    with suppress(ForwardDone):
        for name, array in getattr(operations, operation)(arguments, grad, backend):
            found[name] = array if array is None else to_host(array)
    for name, value in given.items():
        assert contents(value) == before[name], f"{name} was written to"
    return found


class ForwardDone(Exception):
    """Raised where the first gradient would come in, when only the forward is wanted."""


def has_backward(operation):
    module = dispatch.implementation(f"{kernels.__name__}.{operation}", "cupy")
    return hasattr(module, f"{operation}_backward")


def to_device(array, backend):
    return to_gpu(array) if backend == "cupy" else array


def contents(value):
    return to_host(value).tobytes() if hasattr(value, "shape") else value


def to_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def check(name, found, expected, dtype):
    if expected is None:
        assert found is None, name
        return
    assert type(found) is np.ndarray and found.flags.c_contiguous and found.flags.writeable, name
    wide = ": lse" in name
    assert found.dtype == (np.promote_types(dtype, np.float32) if wide else dtype), name
    # Gradients may cancel to nothing, and start from outputs that were rounded already.
    is_gradient = ": grad" in name
    assert_close(found, expected, name=name, at_least=1 if is_gradient else 0, factor=3 if is_gradient else 1)


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
