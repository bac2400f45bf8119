"""A scale and a shift for each column, with an optional residual added first, forward and backward."""

from typing import Any

from .. import checks, dispatch

OPTIONAL = ("residual",)


def affine(input: Any, weight: Any, bias: Any, *, residual: Any = None, backend: str | None = None) -> Any:
    """(input + residual) * weight + bias, along the last axis.

    MobileBERT has it in place of layer norms (Sun et al. 2020, arXiv:2004.02984, section 4.2).

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        weight, bias: (width,).
        residual: of the input's shape, or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, input=input, weight=weight, bias=bias, residual=residual
    )
    input, weight, bias, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, bias=bias, residual=residual)
    return call.run("affine", input, weight, bias, residual)


def affine_backward(
    grad_output: Any, input: Any, weight: Any, bias: Any, *, residual: Any = None, backend: str | None = None
) -> tuple[Any, Any, Any]:
    """The gradients of `affine`.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, weight, bias, residual, backend: as for `affine`.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., width), (width,) and (width,). The gradient of the residual
        equals grad_input.

    Raises:
        As `affine`.
    """
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, grad_output=grad_output, input=input, weight=weight, bias=bias,
        residual=residual,
    )  # fmt: skip
    grad_output, input, weight, bias, residual = call.arrays
    checks.rows(call.backend, input=input, weight=weight, bias=bias, residual=residual, grad_output=grad_output)
    return call.run("affine_backward", grad_output, input, weight, bias, residual)
