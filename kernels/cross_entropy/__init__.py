"""The cross entropy of logits and class indices, forward and backward."""

from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..arguments import Choice, Flag, Floats, Integer, Integers, WideFloats
from ..arrays import Array, ArrayT, NativeArray, Operand, ieee_arithmetic
from ..operation import Function, Operation

REDUCTIONS = ("mean", "sum", "none")


class CrossEntropySaved(NamedTuple):
    """Kept for the backward: the arguments, and lse, (rows, 2), as `return_lse` returns it."""

    input: Array
    target: Array
    lse: Array
    ignore_index: int
    reduction: str


def _forward(
    function: Function, backend: str, save: bool, input: Operand, target: NativeArray,
    ignore_index: int = -100, reduction: str = "mean", return_lse: bool = False,
) -> Any:  # fmt: skip
    losses, lse = function(input, target, ignore_index)
    loss = losses if reduction == "none" else _reduced(losses, target, ignore_index, reduction)
    result = (loss, lse) if return_lse else loss
    return (result, CrossEntropySaved(input, target, lse, ignore_index, reduction)) if save else result


def _backward(
    function: Function, backend: str, grad_output: NativeArray, saved: CrossEntropySaved, out: NativeArray | None = None
) -> NativeArray:
    input, target, lse, ignore_index, reduction = saved
    if reduction == "mean":
        grad_output = _divided(grad_output, target, ignore_index).astype(lse.dtype)
    grad_losses = np.broadcast_to(grad_output, target.shape).copy()  # CuPy takes the call over for its own arrays
    return function(grad_losses, input, target, lse, ignore_index, out)


def _output(saved: CrossEntropySaved) -> tuple[Any, Any]:
    return saved.target.shape if saved.reduction == "none" else (), saved.lse.dtype


CROSS_ENTROPY = Operation(
    __package__,
    "cross_entropy",
    {
        "input": Floats("rows classes"),
        "target": Integers("rows"),
        "ignore_index": Integer(bits=64),
        "reduction": Choice(*REDUCTIONS),
        "return_lse": Flag(schema=""),
    },
    saves=CrossEntropySaved,
    kept={"lse": WideFloats("rows 2")},
    kept_shapes=lambda given: {"lse": (*given.target.shape, 2)},
    gradients=("input",),
    output=_output,
    forward=_forward,
    backward=_backward,
)


def cross_entropy(
    input: ArrayT,
    target: Array,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    return_lse: bool = False,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute log(sum(exp(input))) - input[target] for each row, and their mean or sum.

    Rows with target ignore_index have loss 0 and do not count in the mean. The mean over no rows is NaN.

    Args:
        input: logits, (rows, classes); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        target: integer class indices, (rows,), from 0 to classes - 1 or ignore_index. On a GPU their values are not
            checked.
        ignore_index: the target of rows that do not count; need not be a class.
        reduction: "mean" over the rows that count, "sum", or "none".
        return_lse: also return lse.
        save: also return the state that `cross_entropy_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        A 0-d array, or for "none" the losses, (rows,); of the kind of `input`, in float32 (float64 for float64). With
        `return_lse`, a tuple of it and lse, (rows, 2), of the same dtype: each row's peak and log(sum(exp(input -
        peak))). With `save`, a tuple of that and a `CrossEntropySaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or reduction, and for a target that is not a class (which, where).
        BackendUnavailable: if the backend cannot run here.
    """
    call = CROSS_ENTROPY.open(backend, input, target, ignore_index, reduction, return_lse)
    logits, target, ignore_index, *_ = call.given
    checks.in_range("target", target, logits.shape[1], also=ignore_index)
    return call.run(save)


def cross_entropy_backward(
    grad_output: ArrayT, saved: CrossEntropySaved, *, out: ArrayT | None = None, backend: str | None = None
) -> ArrayT:
    """Return the gradient of `cross_entropy` with respect to the logits.

    It is (softmax(input) - onehot(target)) * grad_output, for "mean" divided by the number of rows that count, and
    zeros for rows that do not count.

    Args:
        grad_output: the gradient with respect to the output, of its dtype: a 0-d array, or (rows,) for "none".
        saved: the state that `cross_entropy` returned with `save=True`.
        out: an array for the gradient, of the shape and dtype of `input`, with contiguous rows (on Numba C-contiguous);
            it may be `input` itself, but not overlap it otherwise.
        backend: as for `cross_entropy`; errors are the same.

    Returns:
        (rows, classes), of the kind and dtype of `input`; or `out`.
    """
    call = CROSS_ENTROPY.open_backward(backend, grad_output, saved, out=out)
    logits, target, lse, ignore_index, _ = call.saved
    checks.shape((target.shape[0], 2), **{"saved.lse": lse})
    checks.in_range("saved.target", target, logits.shape[1], also=ignore_index)
    if out is not None:
        out = call.options["out"]
        checks.same_dtype("input", logits, out=out)
        checks.shape(logits.shape, out=out)
        if call.backend == "numba":
            checks.updatable(out=out)
        else:
            checks.writable_rows("out", out)
        read = {"grad_output": call.grad_output, "target": target, "lse": lse}
        checks.overlaps_none("out", {"out": out} | read | ({} if _is_same(out, logits) else {"input": logits}))
    return call.run()


def _is_same(one: NativeArray, other: NativeArray) -> bool:
    """Return whether two host arrays are the same elements in memory."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    return one is other or (one.ctypes.data == other.ctypes.data and one.strides == other.strides)


@ieee_arithmetic
def _reduced(losses: NativeArray, target: NativeArray, ignore_index: int, reduction: str) -> NativeArray:
    """Return the sum or the mean, a 0-d array."""
    total = losses.sum(dtype=np.float64, keepdims=True)
    if reduction == "mean":
        total = _divided(total, target, ignore_index)
    return total.reshape(()).astype(losses.dtype)


@ieee_arithmetic
def _divided(value: NativeArray, target: NativeArray, ignore_index: int) -> Any:
    """Return `value` over the number of rows that count: an array, so that on a GPU nothing waits for it."""
    return value / (target != ignore_index).sum()
