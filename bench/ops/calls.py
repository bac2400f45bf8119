"""A case brought to a backend and a dtype: whether it can run there, the call, and the check of what it returns."""

import importlib
import importlib.util
import zlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.ops.cases import Case
from bertcore import kernels
from bertcore.kernels import checks, dispatch
from tests.tolerances import assert_close

BACKENDS = tuple(dispatch.IMPLEMENTATIONS)
REFERENCE = "numpy"


def unavailable_reason(case: Case, backend: str, dtype: np.dtype) -> str | None:
    """Why the case cannot run on this backend in this dtype, or None if it can."""
    reason = kernels.unavailable_reason(backend)
    if reason is not None:
        return reason
    dtypes = checks.BACKEND_DTYPES.get(backend)
    if dtypes is not None and dtype.name not in dtypes:
        return f"{backend} computes in {' or '.join(dtypes)}"
    module = f"{kernels.__name__}.{case.op}.{dispatch.IMPLEMENTATIONS[backend]}"
    if importlib.util.find_spec(module) is None:
        return f"{module} does not exist yet"
    missing = [name for name in case.needs if not hasattr(importlib.import_module(module), name)]
    return f"{module} has no {', '.join(missing)} yet" if missing else None


def make_inputs(case: Case, dtype: np.dtype) -> dict[str, Any]:
    """The inputs of the case by name, floating arrays in `dtype`; the same in every run."""
    made = case.make(np.random.default_rng(zlib.crc32(case.id.encode())))
    return _as_dtype(made, dtype)


def bind(case: Case, inputs: dict[str, Any], backend: str) -> Callable[[], tuple]:
    """The call to time: the inputs lie in the backend's memory and weights are prepared."""
    with kernels.use_backend(backend):
        given = {
            name: kernels.to_backend(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }
        given |= {name: kernels.prepare_weight(given[name]) for name in case.prepared}
    return partial(case.function, SimpleNamespace(**given), backend)


def expected_results(case: Case, inputs: dict[str, Any]) -> tuple[np.ndarray | None, ...]:
    """What the reference makes of these inputs in float64."""
    return bind(case, _as_dtype(inputs, np.dtype(np.float64)), REFERENCE)()


def check(found: tuple, expected: tuple, dtype: np.dtype) -> None:
    """Raise AssertionError unless the results have this dtype and are right within its tolerance."""
    assert len(found) == len(expected), f"{len(found)} results, expected {len(expected)}"
    for index, (array, wanted) in enumerate(zip(found, expected, strict=True)):
        name = "output" if index == 0 else f"gradient {index}"
        assert (array is None) == (wanted is None), f"{name} is {'absent' if array is None else 'superfluous'}"
        if array is not None:
            array = to_host(array)
            assert array.dtype == dtype, f"{name} has dtype {array.dtype}, expected {dtype}"
            assert_close(array, wanted, name=name)


def to_host(array: Any) -> np.ndarray:
    """A NumPy, CuPy or PyTorch array as a NumPy array."""
    if hasattr(array, "detach"):
        return array.detach().cpu().numpy()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def _as_dtype(inputs: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    return {name: value.astype(dtype, copy=False) if _is_floating(value) else value for name, value in inputs.items()}


def _is_floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
