"""Layer normalisation over the last axis, with an optional residual added first, forward and backward."""

from typing import Any, NamedTuple

from ..arguments import Floats, Number, ParameterDtype
from ..arrays import Array, ArrayT, DTypeLike
from ..operation import Operation


class LayerNormSaved(NamedTuple):
    """The arrays and numbers that `layer_norm` keeps for its backward."""

    input: Array
    weight: Array | None
    bias: Array | None
    eps: float
    residual: Array | None


LAYER_NORM = Operation(
    __package__,
    "layer_norm",
    {
        "input": Floats("... width"),
        "weight": Floats("width", optional=True),
        "bias": Floats("width", optional=True),
        "eps": Number(minimum=0),
        "residual": Floats("... width", optional=True),
    },
    saves=LayerNormSaved,
    gradients=("input", "weight", "bias"),
    same_gradient={"residual": "input"},
    output="input",
    options={"dtype": ParameterDtype()},
)


def layer_norm(
    input: ArrayT,
    weight: ArrayT | None = None,
    bias: ArrayT | None = None,
    eps: float = 1e-5,
    *,
    residual: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last axis, with x = input + residual.

    The variance is the population's (divided by the width). The sum with the residual is not rounded in between.
    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight, bias: (width,), or None for 1 and 0.
        eps: added to the variance; not negative.
        residual: added to the input before normalisation, of the input's shape, or None.
        save: also return the state that `layer_norm_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `LayerNormSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or eps.
        BackendUnavailable: if the backend cannot run here.
    """
    return LAYER_NORM.call(backend, save, input, weight, bias, eps, residual)


def layer_norm_backward(
    grad_output: ArrayT, saved: LayerNormSaved, *, dtype: DTypeLike | None = None, backend: str | None = None
) -> tuple[ArrayT, ArrayT | None, ArrayT | None]:
    """Return the gradients of `layer_norm`; mean and variance are recomputed from the input.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `layer_norm` returned with `save=True`.
        dtype: of the gradients of weight and bias: by default the input's, or float32 for inputs of lower precision.
        backend: as for `layer_norm`; errors are the same.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., width), (width,) and (width,); the gradient of an absent
        weight or bias is None. The gradient of the residual equals grad_input.
    """
    return LAYER_NORM.call_backward(backend, grad_output, saved, dtype=dtype)
