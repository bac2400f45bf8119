"""The reference itself over the cases of cases.py: against naive oracles, finite differences and PyTorch.

Attention has tests of its own (tests/kernels/test_attention.py).
"""

import numpy as np
import pytest

from bench.ops import operations
from bench.ops.torch_operations import in_torch
from tests.kernels import oracles
from tests.kernels.conformance.cases import CASES
from tests.kernels.finite_differences import STEP, assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import normal
from tests.tolerances import assert_close


def floats(case):
    """The floating arrays among the arguments, by name."""
    arrays = {name: it for name, it in case.arguments.items() if isinstance(it, np.ndarray)}
    return {name: array for name, array in arrays.items() if array.dtype == np.float64}


def selected(without, wanted):
    return pytest.mark.parametrize(
        "operation, case",
        [
            pytest.param(operation, case, id=f"{operation}-{case.name}")
            for operation in CASES
            if operation not in ("attention", "dropout", *without)
            for case in CASES[operation].values()
            if not case.forward_only and wanted(case)
        ],
    )


def has_oracle(case):
    is_of_rows = case.arguments.get("reduction", "none") == "none"
    return is_of_rows and not any(np.isnan(array).any() for array in floats(case).values())


def has_gradient(case):
    """All is finite; a linear map is differentiated without the activation that may be fused with it."""
    is_fused = "weight" in case.arguments and case.arguments.get("activation") is not None
    return all(np.isfinite(array).all() for array in floats(case).values()) and not is_fused


def is_small(case):
    return has_gradient(case) and sum(array.size for array in floats(case).values()) <= 200


def run(operation, arguments, grad):
    return dict(operations.training(operation, arguments, grad, "numpy"))


@selected([], has_oracle)
def test_oracle(operation, case):
    output = operations.forward(operation, case.arguments, "numpy")
    arguments = {name: it for name, it in case.arguments.items() if name != "reduction"}
    assert_close(output, getattr(oracles, operation)(**arguments), at_least=1)


@selected([], is_small)
def test_finite_differences(operation, case):
    found = run(operation, case.arguments, lambda output: normal(98, output.shape))
    for name, gradient in found.items():
        argument = name.removeprefix("grad_")
        if argument == "output":
            continue
        if case.arguments.get(argument) is None:
            assert gradient is None, name
            continue

        def output(changed, argument=argument):
            return operations.forward(operation, case.arguments | {argument: np.asarray(changed)}, "numpy")

        array = case.arguments[argument]
        if np.isnan(output(array)).any():
            continue  # the mean over no row (tests/kernels/test_contracts.py)
        if case.arguments.get("activation") == "relu":
            assert (np.abs(array) > 3 * STEP).all(), "relu has a corner at 0"
        assert_gradient(output, array, normal(98, output(array).shape), gradient, name)


@pytest.mark.parity
@selected(["rotary"], has_gradient)
def test_torch(operation, case):
    torch = pytest.importorskip("torch")
    arrays = floats(case)
    others = {
        name: torch.tensor(it) if isinstance(it, np.ndarray) else it
        for name, it in case.arguments.items()
        if name not in arrays
    }

    def function(*tensors):
        return in_torch(operation, dict(zip(arrays, tensors, strict=True)) | others)

    found = run(operation, case.arguments, lambda output: normal(98, output.shape))
    output, *gradients = torch_gradients(function, normal(98, found["output"].shape), *arrays.values())
    assert_close(found["output"], output, at_least=1)
    for name, gradient in zip(arrays, gradients, strict=True):
        ours = found.get(f"grad_{name}")
        if ours is not None:
            assert_close(ours, gradient, name=f"grad_{name}", at_least=1)
