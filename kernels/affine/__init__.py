"""A factor and a term for each column, with an optional residual added first, forward and backward."""

from typing import Any, NamedTuple

from ..arguments import Floats
from ..arrays import Array, ArrayT
from ..operation import Operation


class AffineSaved(NamedTuple):
    """The arrays and numbers that `affine` keeps for its backward."""

    input: Array
    weight: Array
    bias: Array
    residual: Array | None


AFFINE = Operation(
    __package__,
    "affine",
    {
        "input": Floats("... width"),
        "weight": Floats("width"),
        "bias": Floats("width"),
        "residual": Floats("... width", optional=True),
    },
    saves=AffineSaved,
    gradients=("input", "weight", "bias"),
    same_gradient={"residual": "input"},
    output="input",
)


def affine(
    input: ArrayT,
    weight: ArrayT,
    bias: ArrayT,
    *,
    residual: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute (input + residual) * weight + bias along the last axis.

    MobileBERT uses it instead of layer norms (Sun et al. 2020, arXiv:2004.02984, section 4.2).

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight, bias: (width,).
        residual: of the input's shape, or None.
        save: also return the state that `affine_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and an `AffineSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape.
        BackendUnavailable: if the backend cannot run here.
    """
    return AFFINE.call(backend, save, input, weight, bias, residual)


def affine_backward(
    grad_output: ArrayT, saved: AffineSaved, *, backend: str | None = None
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """Return the gradients of `affine`.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `affine` returned with `save=True`.
        backend: as for `affine`; errors are the same.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., width), (width,) and (width,). The gradient of the residual
        equals grad_input.
    """
    return AFFINE.call_backward(backend, grad_output, saved)
