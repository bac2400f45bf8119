"""gated_activation against naive oracles, finite differences, and the gated feed-forwards of PyTorch."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.activation_names import ACTIVATIONS
from bertcore.kernels.gated_activation import reference
from tests.kernels import oracles
from tests.kernels.finite_differences import assert_gradient
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

EVERY_FORM = pytest.mark.parametrize("gate", ["first", "second"])


@EVERY_FORM
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_oracle(name, gate):
    x, grad = normal(1, (3, 14), scale=2), normal(2, (3, 7))
    assert (np.abs(x) > 0.01).all(), "relu has a corner at 0"
    halves = x[:, :7], x[:, 7:]
    gates, values = halves if gate == "first" else halves[::-1]
    assert_close(reference.gated_activation(x, name, gate), oracles.activation(gates, name) * values)
    gradient = reference.gated_activation_backward(grad, x, name, gate)
    assert_gradient(lambda x: reference.gated_activation(x, name, gate), x, grad, gradient)


@EVERY_FORM
@pytest.mark.parametrize("width", [1, 39, 160])
def test_rows_do_not_depend_on_their_neighbours_nor_on_threads(gate, width, monkeypatch):
    from bertcore.kernels.gated_activation import cpu

    monkeypatch.setattr(cpu, "GRAIN", 1)
    x, grad = normal(1, (39, 2 * width), np.float32), normal(2, (39, width), np.float32)
    output = kernels.gated_activation(x, "gelu", gate=gate, backend="numba")
    gradient = kernels.gated_activation_backward(grad, x, "gelu", gate=gate, backend="numba")
    for row in (0, 20, 38):
        part = slice(row, row + 1)
        np.testing.assert_array_equal(cpu.gated_activation(x[part], "gelu", gate), output[part])
        np.testing.assert_array_equal(cpu.gated_activation_backward(grad[part], x[part], "gelu", gate), gradient[part])


@pytest.mark.parity
def test_torch():
    torch = pytest.importorskip("torch")
    x, grad = normal(1, (5, 78)), normal(2, (5, 39))

    def swiglu(x):
        up, gates = x.chunk(2, dim=-1)
        return up * torch.nn.functional.silu(gates)

    output, grad_input = torch_gradients(swiglu, grad, x)
    assert_close(reference.gated_activation(x, "silu", "second"), output)
    assert_close(reference.gated_activation_backward(grad, x, "silu", "second"), grad_input)
