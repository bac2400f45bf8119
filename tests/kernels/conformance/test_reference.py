"""The reference itself over the cases of cases.py: against naive oracles and finite differences.

Attention has tests of its own (tests/kernels/test_attention.py); tests/bench/test_ops.py all of them in PyTorch.
"""

import numpy as np
import pytest

from bench.ops import operations
from tests.kernels import oracles
from tests.kernels.conformance.cases import CASES
from tests.kernels.finite_differences import STEP, assert_gradient
from tests.kernels.strategies import normal
from tests.tolerances import assert_close


def floats(case):
    """The floating arrays among the arguments, by name."""
    arrays = {name: it for name, it in case.arguments.items() if isinstance(it, np.ndarray)}
    return {name: array for name, array in arrays.items() if array.dtype == np.float64}


def cases(operation, wanted):
    return [case for case in CASES[operation].values() if wanted(case)]


OPERATIONS = [name for name in CASES if name not in ("attention", "dropout")]
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


def run(operation, arguments, grad):
    return dict(operations.training(operation, arguments, grad, "numpy"))


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
            check_gradients(operation, case.arguments)


def check_gradients(operation, arguments):
    for name, gradient in run(operation, arguments, lambda output: normal(98, output.shape)).items():
        argument = name.removeprefix("grad_")
        if argument == "output":
            continue
        if arguments.get(argument) is None:
            assert gradient is None, name
            continue

        def output(changed, argument=argument):
            return operations.forward(operation, arguments | {argument: np.asarray(changed)}, "numpy")

        array = arguments[argument]
        if np.isnan(output(array)).any():
            continue  # the mean over no row (tests/kernels/test_contracts.py)
        if arguments.get("activation") == "relu":
            assert (np.abs(array) > 3 * STEP).all(), "relu has a corner at 0"
        assert_gradient(output, array, normal(98, output(array).shape), gradient, name)
