"""Root-mean-square normalisation over the last axis, with an optional residual added first, forward and backward."""

from typing import Any, NamedTuple

from ..arguments import Floats, Number
from ..arrays import Array, ArrayT
from ..operation import Operation


class RMSNormSaved(NamedTuple):
    """The arrays and numbers that `rms_norm` keeps for its backward."""

    input: Array
    weight: Array | None
    eps: float
    residual: Array | None


RMS_NORM = Operation(
    __package__,
    "rms_norm",
    {
        "input": Floats("... width"),
        "weight": Floats("width", optional=True),
        "eps": Number(minimum=0),
        "residual": Floats("... width", optional=True),
    },
    saves=RMSNormSaved,
    gradients=("input", "weight"),
    same_gradient={"residual": "input"},
    output="input",
)


def rms_norm(
    input: ArrayT,
    weight: ArrayT | None = None,
    eps: float = 1e-6,
    *,
    residual: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last axis, with x = input + residual.

    The sum with the residual is not rounded in between. Source: Zhang and Sennrich 2019, arXiv:1910.07467.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight: (width,), or None for 1.
        eps: added to the mean square; not negative.
        residual: added to the input before normalisation, of the input's shape, or None.
        save: also return the state that `rms_norm_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and an `RMSNormSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or eps.
        BackendUnavailable: if the backend cannot run here.
    """
    return RMS_NORM.call(backend, save, input, weight, eps, residual)


def rms_norm_backward(
    grad_output: ArrayT, saved: RMSNormSaved, *, backend: str | None = None
) -> tuple[ArrayT, ArrayT | None]:
    """Return the gradients of `rms_norm`; the mean square is recomputed from the input.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `rms_norm` returned with `save=True`.
        backend: as for `rms_norm`; errors are the same.

    Returns:
        (grad_input, grad_weight) of shapes (..., width) and (width,); grad_weight is None without a weight. The
        gradient of the residual equals grad_input.
    """
    return RMS_NORM.call_backward(backend, grad_output, saved)
