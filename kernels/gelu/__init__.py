"""GELU, exact or by the tanh approximation, with an optional bias added first, forward and backward."""

from typing import Any

from .. import checks, dispatch

FORMS = ("none", "tanh")


def gelu(input: Any, approximate: str = "none", *, bias: Any = None, backend: str | None = None) -> Any:
    """x Phi(x) of x = input + bias, Phi being the distribution function of the standard normal.

    approximate="tanh" takes x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 instead (`gelu_new` in checkpoints).
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating
            dtype on NumPy.
        approximate: "none" or "tanh".
        bias: (width,), added along the last axis of (..., width), or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or form.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, optional=("bias",), input=input, bias=bias)
    input, bias = call.arrays
    checks.floating(call.backend, input=input, bias=bias)
    checks.choice("approximate", approximate, FORMS)
    _check_bias(input, bias)
    return call.run("gelu", input, approximate, bias)


def gelu_backward(
    grad_output: Any, input: Any, approximate: str = "none", *, bias: Any = None, backend: str | None = None
) -> tuple[Any, Any]:
    """The gradients of `gelu`.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, approximate, bias, backend: as for `gelu`.

    Returns:
        (grad_input, grad_bias); grad_bias is (width,), or None if bias is.

    Raises:
        As `gelu`.
    """
    call = dispatch.open_call(__package__, backend, optional=("bias",), grad_output=grad_output, input=input, bias=bias)
    grad_output, input, bias = call.arrays
    checks.floating(call.backend, input=input, grad_output=grad_output, bias=bias)
    checks.choice("approximate", approximate, FORMS)
    checks.shape(input.shape, grad_output=grad_output)
    _check_bias(input, bias)
    return call.run("gelu_backward", grad_output, input, approximate, bias)


def _check_bias(input: Any, bias: Any) -> None:
    if bias is not None:
        checks.at_least_ndim(1, input=input)
        checks.shape(input.shape[-1:], bias=bias)
