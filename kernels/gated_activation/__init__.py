"""One half of each row times an activation of the other: the inside of gated feed-forwards, forward and backward."""

from typing import Any

from .. import checks, dispatch
from ..activation_names import ACTIVATIONS

GATES = ("first", "second")


def gated_activation(input: Any, activation: str, *, gate: str = "first", backend: str | None = None) -> Any:
    """activation(gate) * value, the two halves of the last axis: GeGLU with "gelu", SwiGLU with "silu".

    Source: Shazeer 2020, arXiv:2002.05202.

    Args:
        input: (..., 2 * width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype
            on NumPy.
        activation: a name that `activation` knows.
        gate: which half the activation is applied to, "first" or "second".
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        (..., width), of the kind and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or name.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input)
    (input,) = call.arrays
    _check(call, input, activation, gate)
    return call.run("gated_activation", input, activation, gate)


def gated_activation_backward(
    grad_output: Any, input: Any, activation: str, *, gate: str = "first", backend: str | None = None
) -> Any:
    """The gradient of `gated_activation` with respect to its input.

    Args:
        grad_output: the gradient with respect to the output, (..., width), of the input's dtype.
        input, activation, gate, backend: as for `gated_activation`.

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        As `gated_activation`.
    """
    call = dispatch.open_call(__package__, backend, grad_output=grad_output, input=input)
    grad_output, input = call.arrays
    _check(call, input, activation, gate, grad_output=grad_output)
    checks.shape((*input.shape[:-1], input.shape[-1] // 2), grad_output=grad_output)
    return call.run("gated_activation_backward", grad_output, input, activation, gate)


def _check(call: dispatch.Call, input: Any, activation: str, gate: str, **others: Any) -> None:
    checks.floating(call.backend, input=input, **others)
    checks.choice("activation", activation, ACTIVATIONS)
    checks.choice("gate", gate, GATES)
    checks.has_axes(input=input)
    if input.shape[-1] % 2:
        raise ValueError(f"input has shape {input.shape}, expected two halves along the last axis")
