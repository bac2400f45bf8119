"""Dropout, residual addition and layer normalisation over the last axis, as at the end of a layer; with backward."""

from typing import Any, NamedTuple

from ..arguments import Floats, Number, ParameterDtype, Probability, Seed
from ..arrays import Array, ArrayT, DTypeLike
from ..operation import Operation


class DropoutLayerNormSaved(NamedTuple):
    """The arrays and numbers that `dropout_layer_norm` keeps for its backward."""

    input: Array
    residual: Array
    weight: Array | None
    bias: Array | None
    eps: float
    p: float
    seed: int | Array


DROPOUT_LAYER_NORM = Operation(
    __package__,
    "dropout_layer_norm",
    {
        "input": Floats("... width"),
        "residual": Floats("... width"),
        "weight": Floats("width", optional=True),
        "bias": Floats("width", optional=True),
        "eps": Number(minimum=0),
        "p": Probability(),
        "seed": Seed(),
    },
    saves=DropoutLayerNormSaved,
    gradients=("input", "residual", "weight", "bias"),
    output="input",
    options={"dtype": ParameterDtype()},
)


def dropout_layer_norm(
    input: ArrayT,
    residual: ArrayT,
    weight: ArrayT | None = None,
    bias: ArrayT | None = None,
    eps: float = 1e-5,
    *,
    p: float,
    seed: int | Array,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute layer_norm(dropout(input, p, seed) + residual, weight, bias, eps) in one pass over memory.

    It drops the same elements as `dropout`; the sum is not rounded in between. Sources: as for `dropout` and
    `layer_norm`; the order of the three follows Vaswani et al. 2017, arXiv:1706.03762, section 5.4.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        residual: of the input's shape.
        weight, bias: (width,), or None for 1 and 0.
        eps: added to the variance; not negative.
        p: the probability that an element of `input` is dropped, at least 0 and below 1.
        seed: a 64-bit integer, at least 0; on CUDA also an array of one uint64, () or (1,), which the kernel reads when
            it runs, so that each launch of a CUDA graph uses its present value.
        save: also return the state that `dropout_layer_norm_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `DropoutLayerNormSaved`.

    Raises:
        TypeError: for a wrong kind of array, dtype or seed.
        ValueError: for a wrong shape, eps, probability or seed.
        BackendUnavailable: if the backend cannot run here.
    """
    return DROPOUT_LAYER_NORM.call(backend, save, input, residual, weight, bias, eps, p, seed)


def dropout_layer_norm_backward(
    grad_output: ArrayT, saved: DropoutLayerNormSaved, *, dtype: DTypeLike | None = None, backend: str | None = None
) -> tuple[ArrayT, ArrayT, ArrayT | None, ArrayT | None]:
    """Return the gradients of `dropout_layer_norm`, recomputing dropout, the sum and its statistics.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        saved: the state that `dropout_layer_norm` returned with `save=True`.
        dtype: of the gradients of weight and bias: by default the input's, or float32 for inputs of lower precision.
        backend: as for `dropout_layer_norm`; errors are the same.

    Returns:
        (grad_input, grad_residual, grad_weight, grad_bias), of the shapes of input, residual, weight and bias; the
        gradient of an absent weight or bias is None.
    """
    return DROPOUT_LAYER_NORM.call_backward(backend, grad_output, saved, dtype=dtype)
