"""PyTorch tensors in, PyTorch tensors out, over the same memory."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels import dispatch, use_backend
from tests.kernels.arrays import normal
from tests.kernels.conformance.calls import everything
from tests.kernels.conformance.cases import CASES

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]
torch = pytest.importorskip("torch")

X, Y = normal(0, (5, 7), np.float32), normal(1, (5, 7), np.float32)
every_operation = pytest.mark.parametrize("operation", CASES)


def tensor(array):
    return torch.from_numpy(np.array(array))


def moved(value, to):
    """An argument whose arrays are what `to` makes of them, in float32."""
    if isinstance(value, kernels.RelativePositions):
        return replace(value, **{name: moved(array, to) for name, array in vars(value).items()})
    if not isinstance(value, np.ndarray):
        return value
    return to(value.astype(np.float32) if value.dtype == np.float64 else value)


def calls(operation):
    """Every fifth conformance case: a function of `to` that gives the results of all functions by name."""
    for case in islice(CASES[operation].values(), None, None, 5):

        def call(to, case=case):
            given = {name: moved(value, to) for name, value in public_arguments(case.arguments).items()}
            made = None if case.forward_only else lambda output: to(normal(99, tuple(output.shape), np.float32))
            return list(everything(operation, given, made, "numpy"))

        yield case.name, call


@every_operation
def test_tensors_in_tensors_out_without_copies(operation, monkeypatch):
    entered, computed = [], []
    native, tensor_of = dispatch.ArrayCall.native, dispatch.tensor_of

    def spy_in(call, name, array):
        result, home = native(call, name, array)
        assert result.ctypes.data == array.data_ptr() or not result.size
        entered.append(name)
        return result, home

    def spy_out(array):
        result = tensor_of(array)
        if array is not None and array.size:
            assert result.data_ptr() == array.ctypes.data
            computed.append(array)
        return result

    monkeypatch.setattr(dispatch.ArrayCall, "native", spy_in)
    monkeypatch.setattr(dispatch, "tensor_of", spy_out)
    for case, call in calls(operation):
        for (name, array), (_, result) in zip(call(np.array), call(tensor), strict=True):
            if array is None:
                assert result is None
                continue
            assert type(result) is torch.Tensor, (case, name)
            np.testing.assert_array_equal(result.numpy(), array, err_msg=f"{case}: {name}", strict=True)
    assert entered and computed


def test_strided_tensors_keep_their_strides():
    transposed = torch.from_numpy(X).T
    np.testing.assert_array_equal(kernels.softmax(transposed).numpy(), kernels.softmax(X.T))


def test_the_default_backend_takes_tensors():
    with use_backend("auto"):
        found = kernels.softmax(torch.from_numpy(X))
    torch.testing.assert_close(found, torch.softmax(torch.from_numpy(X), -1))


def test_arrays_and_tensors_may_be_mixed():
    assert type(kernels.linear(X, torch.from_numpy(Y))) is torch.Tensor
