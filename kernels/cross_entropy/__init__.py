"""Cross entropy of logits against class indices, forward and backward."""

from typing import Any

import numpy as np

from .. import checks, dispatch
from ..precision import ieee_arithmetic, working_dtype

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    input: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """log(sum(exp(input))) - input[target] for each row, and their mean or sum.

    Rows whose target is ignore_index have loss 0 and do not count in the mean. The mean over no row at all is NaN.

    Args:
        input: logits, (rows, classes); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        target: integer class indices, (rows,), from 0 to classes - 1 or ignore_index. On a GPU their values are not
            checked.
        ignore_index: the target of rows that do not count; need not be a class.
        reduction: "mean" over the rows that count, "sum", or "none".
        return_lse: whether to return lse as well, for the backward.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of no axes, or for "none" the losses, (rows,); of the kind of `input`, in float32 (float64 for
        float64). With `return_lse` a tuple of it and lse, (rows, 2), of the same dtype: of each row its peak and
        log(sum(exp(input - peak))).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or reduction, and for a target that is no class
            (which, where).
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input, target=target)
    input, target = call.arrays
    ignore_index = _check(call, input, target, ignore_index, reduction)
    checks.boolean("return_lse", return_lse)
    with call.on_device():
        losses, lse = call.compute("cross_entropy", input, target, ignore_index)
        loss = losses if reduction == "none" else _reduced(losses, target, ignore_index, reduction)
    return call.hand_back((loss, lse) if return_lse else loss)


def cross_entropy_backward(
    grad_output: Any,
    input: Any,
    target: Any,
    *,
    lse: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The gradient of `cross_entropy` with respect to the logits: (softmax(input) - onehot(target)) * grad_output,
    for "mean" divided by the number of rows that count; zeros for those that do not.

    Args:
        grad_output: the gradient with respect to the output, of its dtype: an array of no axes, or (rows,) for "none".
        input, target, ignore_index, reduction, backend: as for `cross_entropy`.
        lse: what `cross_entropy` returned with return_lse=True; without it, it is computed again.
        out: an array for the gradient, of the shape and dtype of `input`, with contiguous rows (on Numba C-contiguous);
            it may be `input` itself, but overlap it in no other way.

    Returns:
        (rows, classes), of the kind and dtype of `input`; or `out`.

    Raises:
        As `cross_entropy`.
    """
    arrays = {"grad_output": grad_output, "input": input, "target": target, "lse": lse, "out": out}
    call = dispatch.open_call(__package__, backend, optional=("lse", "out"), **arrays)
    grad_output, input, target, lse, out = call.arrays
    ignore_index = _check(call, input, target, ignore_index, reduction, out=out)
    _check_wide("grad_output", grad_output, input)
    _check_out(call, out, input)
    checks.shape(target.shape if reduction == "none" else (), grad_output=grad_output)
    if out is not None:
        read = {"grad_output": grad_output, "target": target, "lse": lse}
        checks.overlaps_none("out", {"out": out} | read | ({} if _is_same(out, input) else {"input": input}))
    with call.on_device():
        if lse is None:
            _, lse = call.compute("cross_entropy", input, target, ignore_index)
        else:
            checks.shape((input.shape[0], 2), lse=lse)
            _check_wide("lse", lse, input)
        grad_losses = grad_output
        if reduction == "mean":
            grad_losses = _divided(grad_losses, target, ignore_index).astype(lse.dtype)
        grad_losses = np.broadcast_to(grad_losses, target.shape).copy()  # CuPy takes the call over for its own arrays
    return call.run("cross_entropy_backward", grad_losses, input, target, lse, ignore_index, out)


def _check(call: dispatch.Call, input: Any, target: Any, ignore_index: Any, reduction: str, **others: Any) -> int:
    checks.floating(call.backend, input=input, **others)
    checks.integer(target=target)
    checks.choice("reduction", reduction, REDUCTIONS)
    checks.shape((None, None), input=input)
    checks.shape(input.shape[:1], target=target)
    ignore_index = checks.integer_number("ignore_index", ignore_index)
    if not -(2**63) <= ignore_index < 2**63:
        raise ValueError(f"ignore_index is {ignore_index}, expected an integer of 64 bits")
    checks.in_range("target", target, input.shape[1], also=ignore_index)
    return ignore_index


def _check_wide(name: str, array: Any, input: Any) -> None:
    expected = working_dtype(input.dtype)
    if array.dtype != expected:
        raise TypeError(f"{name} has dtype {array.dtype}, expected {expected} for input of {input.dtype}")


def _check_out(call: dispatch.Call, out: Any, input: Any) -> None:
    if out is None:
        return
    checks.shape(input.shape, out=out)
    if call.backend == "numba":
        checks.updatable(out=out)
    else:
        checks.writable_rows("out", out)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two host arrays have the same memory for the same elements."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    return one is other or (one.ctypes.data == other.ctypes.data and one.strides == other.strides)


@ieee_arithmetic
def _reduced(losses: Any, target: Any, ignore_index: int, reduction: str) -> Any:
    """The sum or the mean, of no axes."""
    total = losses.sum(dtype=np.float64, keepdims=True)
    if reduction == "mean":
        total = _divided(total, target, ignore_index)
    return total.reshape(()).astype(losses.dtype)


@ieee_arithmetic
def _divided(value: Any, target: Any, ignore_index: int) -> Any:
    """`value` over the number of rows that count: an array, so that on a GPU nothing waits for it."""
    return value / (target != ignore_index).sum()
