"""Softmax over one axis, forward and backward."""

from typing import Any

from .. import checks, dispatch


def softmax(input: Any, dim: int = -1, *, backend: str | None = None) -> Any:
    """exp(input - m) / sum(exp(input - m)) along the axis `dim`, with m the largest value along it.

    A line of which every entry is -inf (every key of an attention row masked, say) gives zeros, not NaN; NaN gives NaN.

    Args:
        input: an array of any shape with at least one axis; float32 or float64 on Numba, float32, float16 or
            bfloat16 on CUDA, any floating dtype on NumPy.
        dim: the axis to normalise.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or axis.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input)
    (input,) = call.arrays
    checks.floating(call.backend, input=input)
    checks.has_axes(input=input)
    return call.run("softmax", input, checks.axis("dim", dim, input.ndim))


def softmax_backward(grad_output: Any, output: Any, dim: int = -1, *, backend: str | None = None) -> Any:
    """The gradient of `softmax` with respect to its input: output * (grad_output - sum(grad_output * output)).

    Args:
        grad_output: the gradient with respect to the output, of the output's shape and dtype.
        output: what `softmax` returned.
        dim, backend: as for `softmax`.

    Returns:
        The gradient with respect to the input, of the same shape and dtype.

    Raises:
        As `softmax`.
    """
    call = dispatch.open_call(__package__, backend, grad_output=grad_output, output=output)
    grad_output, output = call.arrays
    checks.floating(call.backend, output=output, grad_output=grad_output)
    checks.has_axes(output=output)
    checks.shape(output.shape, grad_output=grad_output)
    return call.run("softmax_backward", grad_output, output, checks.axis("dim", dim, output.ndim))
