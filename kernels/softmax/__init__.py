"""Softmax over one axis, forward and backward."""

from typing import Any, NamedTuple

from ..arguments import Axis, Floats
from ..arrays import Array, ArrayT
from ..operation import Operation


class SoftmaxSaved(NamedTuple):
    """The arrays and numbers that `softmax` keeps for its backward."""

    output: Array
    dim: int


SOFTMAX = Operation(
    __package__,
    "softmax",
    {"input": Floats("..."), "dim": Axis(of="input")},
    saves=SoftmaxSaved,
    kept={"output": Floats("...")},
    gradients=("input",),
    output="output",
)


def softmax(input: ArrayT, dim: int = -1, *, save: bool = False, backend: str | None = None) -> Any:
    """Compute exp(input - m) / sum(exp(input - m)) along the axis `dim`, with m the largest value along it.

    A line of -inf (for example an attention row with every key masked) gives zeros, not NaN; NaN gives NaN.

    Args:
        input: an array of any shape with at least one axis; float32 or float64 on Numba, float32, float16 or
            bfloat16 on CUDA, any floating dtype on NumPy.
        dim: the axis to normalise.
        save: also return the state that `softmax_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `SoftmaxSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong axis.
        BackendUnavailable: if the backend cannot run here.
    """
    return SOFTMAX.call(backend, save, input, dim)


def softmax_backward(grad_output: ArrayT, saved: SoftmaxSaved, *, backend: str | None = None) -> ArrayT:
    """Return the gradient of `softmax` with respect to its input: output * (grad_output - sum(grad_output * output)).

    Args:
        grad_output: the gradient with respect to the output, of the output's shape and dtype.
        saved: the state that `softmax` returned with `save=True`.
        backend: as for `softmax`; errors are the same.

    Returns:
        The gradient with respect to the input, of the same shape and dtype.
    """
    return SOFTMAX.call_backward(backend, grad_output, saved)
