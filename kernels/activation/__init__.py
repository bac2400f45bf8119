"""Elementwise activation functions by name, and GELU with an optional bias added first, forward and backward.

Two contracts over one implementation: a GELU is an activation of input + bias.
"""

from typing import Any

from .. import checks, dispatch
from ..activation_names import ACTIVATIONS

GELU_FORMS = {"none": "gelu", "tanh": "gelu_tanh"}


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
    return call.run("activation", input, activation, None)


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
    return call.run("activation_backward", grad_output, input, activation, None)[0]


def gelu(input: Any, approximate: str = "none", *, bias: Any = None, backend: str | None = None) -> Any:
    """x Phi(x) of x = input + bias, Phi being the distribution function of the standard normal.

    approximate="tanh" takes x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 instead (`gelu_new` in checkpoints).
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        approximate: "none" or "tanh".
        bias: (width,), added along the last axis of (..., width), or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or form.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, optional=("bias",), input=input, bias=bias)
    input, bias = call.arrays
    checks.floating(call.backend, input=input, bias=bias)
    checks.choice("approximate", approximate, GELU_FORMS)
    _check_bias(input, bias)
    return call.run("activation", input, GELU_FORMS[approximate], bias)


def gelu_backward(
    grad_output: Any, input: Any, approximate: str = "none", *, bias: Any = None, backend: str | None = None
) -> tuple[Any, Any]:
    """The gradients of `gelu`.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, approximate, bias, backend: as for `gelu`.

    Returns:
        (grad_input, grad_bias); grad_bias is (width,), or None if bias is.

    Raises:
        As `gelu`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=("bias",), grad_output=grad_output,
        input=input, bias=bias,
    )  # fmt: skip
    grad_output, input, bias = call.arrays
    checks.floating(call.backend, input=input, grad_output=grad_output, bias=bias)
    checks.choice("approximate", approximate, GELU_FORMS)
    checks.shape(input.shape, grad_output=grad_output)
    _check_bias(input, bias)
    return call.run("activation_backward", grad_output, input, GELU_FORMS[approximate], bias)


def _check_bias(input: Any, bias: Any) -> None:
    if bias is not None:
        checks.has_axes(input=input)
        checks.shape(input.shape[-1:], bias=bias)
