"""Elementwise activation functions by name, and GELU with an optional bias added first, forward and backward.

Two contracts over one implementation, `activation(input, name, bias)`: a GELU is an activation of input + bias.
"""

from typing import Any, NamedTuple

from .. import checks
from ..activation_names import ACTIVATIONS
from ..arguments import Choice, Floats
from ..arrays import Array, ArrayT, NativeArray, Operand
from ..operation import Function, Operation

GELU_FORMS = {"none": "gelu", "tanh": "gelu_tanh"}


class ActivationSaved(NamedTuple):
    """The arrays and numbers that `activation` keeps for its backward."""

    input: Array
    activation: str


class GELUSaved(NamedTuple):
    """The arrays and numbers that `gelu` keeps for its backward."""

    input: Array
    approximate: str
    bias: Array | None


def _activate(function: Function, backend: str, save: bool, input: Operand, activation: str) -> Any:
    output = function(input, activation, None)
    return (output, ActivationSaved(input, activation)) if save else output


def _activate_backward(
    function: Function, backend: str, grad_output: NativeArray, saved: ActivationSaved
) -> NativeArray:
    return function(grad_output, *saved, None)[0]


def _gelu(function: Function, backend: str, save: bool, input: Operand, approximate: str, bias: Operand | None) -> Any:
    output = function(input, GELU_FORMS[approximate], bias)
    return (output, GELUSaved(input, approximate, bias)) if save else output


def _gelu_backward(function: Function, backend: str, grad_output: Operand, saved: GELUSaved) -> tuple[Any, Any]:
    return function(grad_output, saved.input, GELU_FORMS[saved.approximate], saved.bias)


ACTIVATION = Operation(
    __package__,
    "activation",
    {"input": Floats("..."), "activation": Choice(*ACTIVATIONS)},
    saves=ActivationSaved,
    gradients=("input",),
    output="input",
    forward=_activate,
    backward=_activate_backward,
)

GELU = Operation(
    __package__,
    "gelu",
    {"input": Floats("..."), "approximate": Choice(*GELU_FORMS), "bias": Floats("width", optional=True)},
    saves=GELUSaved,
    gradients=("input", "bias"),
    output="input",
    function="activation",
    forward=_gelu,
    backward=_gelu_backward,
)


def activation(input: ArrayT, activation: str, *, save: bool = False, backend: str | None = None) -> Any:
    """Apply the activation function of that name, elementwise.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        activation: "relu", max(x, 0); "tanh"; "silu", x / (1 + exp(-x)); "gelu", the exact form; "gelu_tanh", its
            approximation by tanh.
        save: also return the state that `activation_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and an `ActivationSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for an unknown name.
        BackendUnavailable: if the backend cannot run here.
    """
    return ACTIVATION.call(backend, save, input, activation)


def activation_backward(grad_output: ArrayT, saved: ActivationSaved, *, backend: str | None = None) -> ArrayT:
    """Return grad_output times the derivative of the activation at the input (relu's is 0 at 0 and 1 at NaN).

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `activation` returned with `save=True`.
        backend: as for `activation`; errors are the same.

    Returns:
        The gradient with respect to the input, of the same shape and dtype.
    """
    return ACTIVATION.call_backward(backend, grad_output, saved)


def gelu(
    input: ArrayT,
    approximate: str = "none",
    *,
    bias: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute x Phi(x) of x = input + bias, Phi being the distribution function of the standard normal.

    approximate="tanh" takes x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 instead (`gelu_new` in checkpoints).
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        approximate: "none" or "tanh".
        bias: (width,), added along the last axis of (..., width), or None.
        save: also return the state that `gelu_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `GELUSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or form.
        BackendUnavailable: if the backend cannot run here.
    """
    call = GELU.open(backend, input, approximate, bias)
    input, _, bias = call.given
    _check_bias("bias", input, bias)
    return call.run(save)


def gelu_backward(grad_output: ArrayT, saved: GELUSaved, *, backend: str | None = None) -> tuple[ArrayT, ArrayT | None]:
    """Return the gradients of `gelu`.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `gelu` returned with `save=True`.
        backend: as for `gelu`; errors are the same.

    Returns:
        (grad_input, grad_bias); grad_bias is (width,), or None without a bias.
    """
    call = GELU.open_backward(backend, grad_output, saved)
    _check_bias("saved.bias", call.saved.input, call.saved.bias)
    return call.run()


def _check_bias(name: str, input: Operand, bias: Operand | None) -> None:
    if bias is not None:
        if not input.ndim:
            raise ValueError("input has shape (), expected (..., width) with a bias")
        checks.shape(input.shape[-1:], **{name: bias})
