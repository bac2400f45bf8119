"""An activation of one half of the last axis times the other half, forward and backward."""

from typing import Any, NamedTuple

from ..activation_names import ACTIVATIONS
from ..arguments import Choice, Floats
from ..arrays import Array, ArrayT, Operand
from ..operation import Operation

GATES = ("first", "second")


class GatedActivationSaved(NamedTuple):
    """The arrays and numbers that `gated_activation` keeps for its backward."""

    input: Array
    activation: str
    gate: str


def _output(saved: GatedActivationSaved) -> tuple[Any, Any]:
    return _half("saved.input", saved.input), saved.input.dtype


def _half(name: str, input: Operand) -> tuple[int, ...]:
    """Return the shape of each half of `input`. Raises ValueError for an odd width."""
    *lead, width = input.shape
    if width % 2:
        raise ValueError(f"{name} has shape {input.shape}, expected two halves along the last axis")
    return (*lead, width // 2)


GATED_ACTIVATION = Operation(
    __package__,
    "gated_activation",
    {"input": Floats("... width"), "activation": Choice(*ACTIVATIONS), "gate": Choice(*GATES)},
    saves=GatedActivationSaved,
    gradients=("input",),
    output=_output,
)


def gated_activation(
    input: ArrayT, activation: str, *, gate: str = "first", save: bool = False, backend: str | None = None
) -> Any:
    """Compute activation(gate) * value of the two halves of the last axis: GeGLU with "gelu", SwiGLU with "silu".

    Source: Shazeer 2020, arXiv:2002.05202.

    Args:
        input: (..., 2 * width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype
            on NumPy.
        activation: a name as in `activation`.
        gate: the half to which the activation is applied, "first" or "second".
        save: also return the state that `gated_activation_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        (..., width), of the kind and dtype of `input`; with `save`, a tuple of it and a `GatedActivationSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or name.
        BackendUnavailable: if the backend cannot run here.
    """
    call = GATED_ACTIVATION.open(backend, input, activation, gate)
    _half("input", call.given[0])
    return call.run(save)


def gated_activation_backward(
    grad_output: ArrayT, saved: GatedActivationSaved, *, backend: str | None = None
) -> ArrayT:
    """Return the gradient of `gated_activation` with respect to its input.

    Args:
        grad_output: the gradient with respect to the output, (..., width), of the input's dtype.
        saved: the state that `gated_activation` returned with `save=True`.
        backend: as for `gated_activation`; errors are the same.

    Returns:
        An array of the kind, shape and dtype of `input`.
    """
    return GATED_ACTIVATION.call_backward(backend, grad_output, saved)
