"""Root mean square normalisation over the last axis, with an optional residual added first, forward and backward."""

from typing import Any

from .. import checks, dispatch

OPTIONAL = ("weight", "residual")


def rms_norm(
    input: Any, weight: Any = None, eps: float = 1e-6, *, residual: Any = None, backend: str | None = None
) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, with x = input + residual.

    The sum with the residual is not rounded in between. Source: Zhang and Sennrich 2019, arXiv:1910.07467.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight: (width,), or None for 1.
        eps: added to the mean square; not negative.
        residual: added to the input before it is normalised, of the input's shape, or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or eps.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, input=input, weight=weight,
        residual=residual,
    )  # fmt: skip
    input, weight, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, residual=residual)
    eps = checks.number_of(input.dtype, "eps", eps, minimum=0)
    return call.run("rms_norm", input, weight, eps, residual)


def rms_norm_backward(
    grad_output: Any,
    input: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    residual: Any = None,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """The gradients of `rms_norm`; the mean square is computed again from the input.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, weight, eps, residual, backend: as for `rms_norm`.

    Returns:
        (grad_input, grad_weight) of shapes (..., width) and (width,); grad_weight is None if weight is. The gradient of
        the residual equals grad_input.

    Raises:
        As `rms_norm`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, grad_output=grad_output,
        input=input, weight=weight, residual=residual,
    )  # fmt: skip
    grad_output, input, weight, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, residual=residual, grad_output=grad_output)
    eps = checks.number_of(input.dtype, "eps", eps, minimum=0)
    return call.run("rms_norm_backward", grad_output, input, weight, eps, residual)
