"""Layer normalisation over the last axis, with an optional residual added first, forward and backward."""

from typing import Any

from .. import checks, dispatch

OPTIONAL = ("weight", "bias", "residual")


def layer_norm(
    input: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    residual: Any = None,
    backend: str | None = None,
) -> Any:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last axis, with x = input + residual.

    The variance is the population's (divided by the width). The sum with the residual is not rounded in between.
    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight, bias: (width,), or None for 1 and 0.
        eps: added to the variance; not negative.
        residual: added to the input before it is normalised, of the input's shape, or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or eps.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, input=input, weight=weight, bias=bias,
        residual=residual,
    )  # fmt: skip
    input, weight, bias, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, bias=bias, residual=residual)
    eps = checks.number_of(input.dtype, "eps", eps, minimum=0)
    return call.run("layer_norm", input, weight, bias, eps, residual)


def layer_norm_backward(
    grad_output: Any,
    input: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    residual: Any = None,
    dtype: Any = None,
    backend: str | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of `layer_norm`; mean and variance are computed again from the input.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, weight, bias, eps, residual, backend: as for `layer_norm`.
        dtype: of the gradients of weight and bias: that of `input`, by default, or float32 for an input of lower
            precision.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., width), (width,) and (width,); the gradient of an absent
        weight or bias is None. The gradient of the residual equals grad_input.

    Raises:
        As `layer_norm`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, grad_output=grad_output,
        input=input, weight=weight, bias=bias, residual=residual,
    )  # fmt: skip
    grad_output, input, weight, bias, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, bias=bias, residual=residual, grad_output=grad_output)
    eps = checks.number_of(input.dtype, "eps", eps, minimum=0)
    dtype = checks.gradient_dtype(input, dtype)
    return call.run("layer_norm_backward", grad_output, input, weight, bias, eps, residual, dtype)
