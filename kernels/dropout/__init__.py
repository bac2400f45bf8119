"""Dropout with an optional residual added after it, forward and backward."""

from typing import Any, NamedTuple

import numpy as np

from ..arguments import Floats, Probability, Seed
from ..arrays import Array, ArrayT, NativeArray, Operand
from ..operation import Function, Operation


class DropoutSaved(NamedTuple):
    """The numbers that `dropout` keeps for its backward; the only array is, on a GPU, the seed."""

    p: float
    seed: int | Array
    shape: tuple[int, ...]
    dtype: np.dtype


def _forward(
    function: Function, backend: str, save: bool, input: Operand, p: float, seed: int | Array, residual: Operand | None
) -> Any:
    output = function(input, p, seed, residual)
    return (output, DropoutSaved(p, seed, input.shape, input.dtype)) if save else output


def _backward(function: Function, backend: str, grad_output: NativeArray, saved: DropoutSaved) -> NativeArray:
    return function(grad_output, saved.p, saved.seed)


DROPOUT = Operation(
    __package__,
    "dropout",
    {"input": Floats("..."), "p": Probability(), "seed": Seed(), "residual": Floats("...", optional=True)},
    saves=DropoutSaved,
    gradients=("input",),
    same_gradient={"residual": "grad_output"},
    output=lambda saved: (saved.shape, saved.dtype),
    forward=_forward,
    backward=_backward,
)


def dropout(
    input: ArrayT,
    p: float,
    seed: int | Array,
    *,
    residual: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Set each element of `input` to 0 with probability p, else divide it by 1 - p; then add `residual`.

    The dropped elements depend only on their index in C order and on `seed`: they are the same on every backend, with
    any number of threads, so that no array is kept for the backward.
    Sources: Srivastava et al. 2014; the random bits are those of Philox 4x32-10, Salmon et al. 2011.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or
            bfloat16 on CUDA, any floating dtype on NumPy.
        p: the probability that an element is dropped, at least 0 and below 1.
        seed: a 64-bit integer, at least 0; on CUDA also an array of one uint64, () or (1,), which the kernel reads when
            it runs, so that each launch of a CUDA graph uses its present value.
        residual: of the shape and dtype of `input`, or None.
        save: also return the state that `dropout_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `DropoutSaved`.

    Raises:
        TypeError: for a wrong kind of array, dtype or seed.
        ValueError: for a wrong shape, probability or seed.
        BackendUnavailable: if the backend cannot run here.
    """
    return DROPOUT.call(backend, save, input, p, seed, residual)


def dropout_backward(grad_output: ArrayT, saved: DropoutSaved, *, backend: str | None = None) -> ArrayT:
    """Return the gradient of `dropout` with respect to its input: dropout of the gradient of its output.

    Args:
        grad_output: the gradient with respect to the output.
        saved: the state that `dropout` returned with `save=True`.
        backend: as for `dropout`; errors are the same.

    Returns:
        The gradient with respect to the input, of the same shape and dtype. The gradient of the residual is
        grad_output.
    """
    return DROPOUT.call_backward(backend, grad_output, saved)
