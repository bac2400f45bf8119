"""A case on a backend and in a dtype: reasons why it cannot run, its call, and the check of the results."""

import importlib
import importlib.util
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.ops import operations
from bench.ops.cases import FORWARD, Case
from bertcore import kernels
from bertcore.kernels import checks, dispatch
from bertcore.kernels.arrays import working_dtype
from tests.tolerances import assert_close

BACKENDS = tuple(dispatch.IMPLEMENTATIONS)
REFERENCE = "numpy"


def unavailable_reason(case: Case, backend: str, dtype: np.dtype) -> str | None:
    """Return why the case cannot run on this backend in this dtype, or None."""
    reason = kernels.unavailable_reason(backend)
    if reason is not None:
        return reason
    dtypes = checks.BACKEND_DTYPES.get(backend)
    if dtypes is not None and dtype.name not in dtypes:
        return f"{backend} computes in {' or '.join(dtypes)}"
    module = f"{kernels.__name__}.{case.folder}.{dispatch.IMPLEMENTATIONS[backend]}"
    if importlib.util.find_spec(module) is None:
        return f"{module} does not exist yet"
    missing = [name for name in case.needs if not hasattr(importlib.import_module(module), name)]
    return f"{module} has no {', '.join(missing)} yet" if missing else None


def make_inputs(case: Case, dtype: np.dtype) -> dict[str, Any]:
    """Return the inputs of the case by name, floating arrays in `dtype`; the same in every run."""
    made = case.make(np.random.default_rng(zlib.crc32(case.id.encode())))
    return _as_dtype(made, dtype)


def bind(case: Case, inputs: dict[str, Any], backend: str) -> Callable[[], dict[str, Any]]:
    """The call to time, which gives results by name: inputs lie in the backend's memory, weights are prepared."""
    with kernels.use_backend(backend):
        given = {
            name: kernels.to_backend(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }
        given |= {name: kernels.prepare_weight(given[name]) for name in case.prepared}
    grad_output = given.pop("grad_output", None)
    if case.op == "cross_entropy" and grad_output is not None:  # of the losses' dtype
        grad_output = grad_output.astype(working_dtype(grad_output.dtype), copy=False)
    arguments = operations.public_arguments(split_qkv(given))
    if case.direction == FORWARD:
        return partial(_forward, case.op, arguments, backend)
    return partial(_training, case.op, arguments, grad_output, backend)


def _forward(operation: str, arguments: dict[str, Any], backend: str) -> dict[str, Any]:
    return {"output": operations.forward(operation, arguments, backend)}


def _training(operation: str, arguments: dict[str, Any], grad_output: Any, backend: str) -> dict[str, Any]:
    return dict(operations.training(operation, arguments, lambda output: grad_output, backend))


def split_qkv(inputs: dict[str, Any]) -> dict[str, Any]:
    """The fused array as three views of it: query, key, value."""
    if "qkv" not in inputs:
        return inputs
    others = {name: it for name, it in inputs.items() if name != "qkv"}
    qkv = inputs["qkv"] if inputs["cu_seqlens"] is None else inputs["qkv"].swapaxes(0, 1)
    return others | dict(zip(("query", "key", "value"), qkv, strict=True))


def expected_results(case: Case, inputs: dict[str, Any]) -> dict[str, np.ndarray | None]:
    """Return the reference's results for these inputs in float64."""
    return bind(case, _as_dtype(inputs, np.dtype(np.float64)), REFERENCE)()


def check(found: dict[str, Any], expected: dict[str, Any], dtype: np.dtype) -> None:
    """Raise AssertionError unless the results have this dtype and are right within its tolerance; None is no result.

    A loss, which has no axes, may be of the dtype that it is computed in.
    """
    found, expected = _without_none(found), _without_none(expected)
    assert found.keys() == expected.keys(), f"the results are {', '.join(found)}, expected {', '.join(expected)}"
    for name, wanted in expected.items():
        array = to_host(found[name])
        is_right = array.dtype == dtype or (array.ndim == 0 and array.dtype == working_dtype(dtype))
        assert is_right, f"{name} has dtype {array.dtype}, expected {dtype}"
        assert_close(array, wanted, name=name)


def _without_none(results: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in results.items() if array is not None}


def to_host(array: Any) -> np.ndarray:
    """A NumPy, CuPy or PyTorch array as a NumPy array."""
    return array.detach().cpu().numpy() if hasattr(array, "detach") else kernels.to_host(array)


def _as_dtype(inputs: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    return {name: value.astype(dtype, copy=False) if _is_floating(value) else value for name, value in inputs.items()}


def _is_floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
