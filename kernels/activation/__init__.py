"""Elementwise activation functions by name, forward and backward."""

from typing import Any

from .. import checks, dispatch
from ..activation_names import ACTIVATIONS


def activation(input: Any, activation: str, *, backend: str | None = None) -> Any:
    """The activation function of that name, elementwise.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        activation: "relu", max(x, 0); "tanh"; "silu", x / (1 + exp(-x)); "gelu", the exact form; "gelu_tanh", its
            approximation by tanh.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or name.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input)
    (input,) = call.arrays
    checks.floating(call.backend, input=input)
    checks.choice("activation", activation, ACTIVATIONS)
    return call.run("activation", input, activation)


def activation_backward(grad_output: Any, input: Any, activation: str, *, backend: str | None = None) -> Any:
    """grad_output times the derivative of the activation at `input` (relu's derivative at 0 is 0).

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, activation, backend: as for `activation`.

    Returns:
        The gradient with respect to the input, of the same shape and dtype.

    Raises:
        As `activation`.
    """
    call = dispatch.open_call(__package__, backend, grad_output=grad_output, input=input)
    grad_output, input = call.arrays
    checks.floating(call.backend, input=input, grad_output=grad_output)
    checks.choice("activation", activation, ACTIVATIONS)
    checks.shape(input.shape, grad_output=grad_output)
    return call.run("activation_backward", grad_output, input, activation)
