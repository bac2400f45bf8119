"""Checks of an implementation against the reference in float64, case by case. Needs no pytest."""

from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from bench.ops.operations import folder, public_arguments
from bertcore import kernels
from bertcore.kernels import dispatch
from bertcore.kernels.checks import BACKEND_DTYPES
from tests.kernels.arrays import DTYPES, LAYOUTS, normal, to_gpu, with_layout
from tests.kernels.conformance.calls import everything
from tests.kernels.conformance.cases import CASES
from tests.tolerances import assert_close

KERNELS = Path(kernels.__file__).parent
DTYPES_OF = {"numpy": tuple(DTYPES), **BACKEND_DTYPES}


def on_disk(backend):
    """The operations that `backend` implements."""
    module = dispatch.IMPLEMENTATIONS[backend]  # a file or a folder
    return [name for name in CASES if any((KERNELS / folder(name)).glob(f"{module}*"))]


def assert_conforms(case, operation, backend, dtype, layouts=LAYOUTS):
    """The backend gives what the reference gives in float64 for the same rounded values, whatever the memory layout."""
    exact = results(case, operation, "numpy", dtype, np.float64, "contiguous")
    for layout in layouts:
        with recorded_backends() as computed_by:
            found = results(case, operation, backend, dtype, dtype, layout)
        assert set(computed_by) == {backend}
        assert found and (found.keys() == exact.keys() or backend == "cupy"), "some results are missing"
        for key, array in found.items():
            # A training step of linear keeps the sum before an activation, in the arrays' dtype: two roundings.
            factor = 2 if operation == "linear" and key.startswith("output") else 1
            check(f"{case.name}: {key} of {layout} arrays", array, exact[key], dtype_of(operation, key, dtype), factor)


def dtype_of(operation, name, dtype):
    """Return the dtype of a result for arrays of `dtype`."""
    is_wide = name == "lse" or "not rounded" in name or (operation, name) == ("cross_entropy", "output")
    return np.promote_types(dtype, np.float32) if is_wide else np.dtype(dtype)


@contextmanager
def recorded_backends():
    """The backend of every call within the block."""
    seen, find = [], dispatch.implementation

    def noted(package, backend):
        seen.append(backend)
        return find(package, backend)

    with mock.patch.object(dispatch, "implementation", noted):
        yield seen


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
    arguments = public_arguments(given)

    def grad(output):
        name = f"gradient {len(given)}"
        given[name] = prepare(normal(99, output.shape)).astype(dtype_of(operation, "output", dtype), copy=False)
        before[name] = contents(given[name])
        return given[name]

    before = {name: contents(value) for name, value in given.items()}
    called = everything(operation, arguments, None if case.forward_only else grad, backend)
    found = {name: array if array is None else to_host(array) for name, array in called}
    if operation == "embedding" and dtype == DTYPES["bfloat16"] and backend != "cupy":
        assert found["output"].dtype == np.float32  # the same values
        found["output"] = found["output"].astype(dtype)
    for name, value in given.items():
        assert contents(value) == before[name], f"{name} was written to"
        if found.get(f"grad_{name}") is not None:
            assert found[f"grad_{name}"].shape == value.shape, name
    return found


def to_device(array, backend):
    return to_gpu(array) if backend == "cupy" else array


def contents(value):
    return to_host(value).tobytes() if hasattr(value, "shape") else value


def to_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def check(name, found, expected, dtype, factor=1):
    if expected is None:
        assert found is None, name
        return
    assert type(found) is np.ndarray and found.flags.c_contiguous and found.flags.writeable, name
    assert found.dtype == dtype, name
    # Gradients may cancel to nothing, and start from outputs that were rounded already.
    is_gradient = ": grad" in name
    assert_close(found, expected, name=name, at_least=1 if is_gradient else 0, factor=3 if is_gradient else factor)
