"""Affine map with a weight prepared once and optional bias, activation and residual, forward and backward."""

import math
from typing import Any

from .. import checks, dispatch
from ..activation import ACTIVATIONS

OPTIONAL = ("bias", "residual")


class PreparedWeight:
    """A weight in the form that one backend wants; made by `prepare_weight`, used in place of the array.

    Attributes:
        backend: the backend it belongs to.
        out_features, in_features: its shape.
        dtype: its dtype.
    """

    def __init__(self, backend: str, form: Any):
        self.backend = backend
        self.form = form
        self.out_features, self.in_features = form.out_features, form.in_features
        self.dtype = form.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    def to_array(self) -> Any:
        """The weight as it was given, (out_features, in_features), as a NumPy or CuPy array."""
        return self.form.to_array()

    def __repr__(self) -> str:
        return f"PreparedWeight({self.out_features}, {self.in_features}, {self.dtype}, backend={self.backend!r})"


def prepare_weight(weight: Any, *, backend: str | None = None) -> PreparedWeight:
    """Bring a weight into its backend's form once, so that `linear` need not at every call; the array can be let go.

    Args:
        weight: (out_features, in_features), as checkpoints store it; dtypes as for `linear`.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.enter(__package__, backend, weight=weight)
    (weight,) = call.arrays
    checks.floating(call.backend, weight=weight)
    checks.shape((None, None), weight=weight)
    return PreparedWeight(call.backend, call.compute("prepare_weight", weight))


def linear(
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    residual: Any = None,
    backend: str | None = None,
) -> Any:
    """activation(input @ weight.T + bias) + residual.

    Args:
        input: (..., in_features); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype
            on NumPy. All arrays share one dtype.
        weight: (out_features, in_features), an array or what `prepare_weight` made of it.
        bias: (out_features,) or None.
        activation: a name that `activation` knows, or None.
        residual: (..., out_features), added last, or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`), and if that is "auto"
            the one a prepared weight belongs to.

    Returns:
        (..., out_features), of the kind and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape, and for a weight prepared for another backend.
        BackendUnavailable: if the backend cannot run here.
    """
    call, weight = _enter(weight, backend, input=input, bias=bias, residual=residual)
    input, bias, residual = call.arrays[:3]
    out_features = _check(call, input, weight, activation, bias=bias, residual=residual)
    leading = input.shape[:-1]
    checks.shape((*leading, out_features), residual=residual)
    rows, residual = _rows(input), None if residual is None else _rows(residual)
    output = call.compute("linear", rows, _form(weight), bias, activation, residual)
    return call.hand_back(output.reshape(*leading, out_features))


def linear_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    backend: str | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of `linear`; what the activation was applied to is computed again.

    Args:
        grad_output: the gradient with respect to the output, (..., out_features), of the input's dtype.
        input, weight, bias, activation, backend: as for `linear`.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., in_features), (out_features, in_features) and
        (out_features,); grad_bias is None if bias is. The gradient of a residual is grad_output itself.

    Raises:
        As `linear`.
    """
    call, weight = _enter(weight, backend, input=input, grad_output=grad_output, bias=bias)
    input, grad_output, bias = call.arrays[:3]
    out_features = _check(call, input, weight, activation, grad_output=grad_output, bias=bias)
    checks.shape((*input.shape[:-1], out_features), grad_output=grad_output)
    grad_input, grad_weight, grad_bias = call.compute(
        "linear_backward", _rows(grad_output), _rows(input), _form(weight), bias, activation
    )
    return call.hand_back((grad_input.reshape(input.shape), grad_weight, grad_bias))


def _enter(weight: Any, backend: str | None, **arrays: Any) -> tuple[dispatch.Call, Any]:
    """The call, on the backend that a prepared weight belongs to, and the weight as a native array or prepared."""
    if not isinstance(weight, PreparedWeight):
        call = dispatch.enter(__package__, backend, optional=OPTIONAL, **arrays, weight=weight)
        return call, call.arrays[-1]
    chosen = backend or dispatch.get_backend()
    if chosen not in (dispatch.AUTO, weight.backend):
        raise ValueError(
            f"weight was prepared for backend {weight.backend!r}, but this call runs on {chosen!r}: "
            f"prepare_weight(weight.to_array(), backend={chosen!r}) makes one for it"
        )
    return dispatch.enter(__package__, weight.backend, optional=OPTIONAL, **arrays), weight


def _check(call: dispatch.Call, input: Any, weight: Any, activation: str | None, *, bias: Any, **others: Any) -> int:
    """Check what `linear` and its backward share; the number of output features."""
    checks.floating(call.backend, input=input, weight=weight, bias=bias, **others)
    checks.choice("activation", activation, (None, *ACTIVATIONS))
    checks.at_least_ndim(1, input=input)
    if len(weight.shape) != 2 or weight.shape[1] != input.shape[-1]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}, expected (out_features, {input.shape[-1]}) "
            f"for input of shape {input.shape}"
        )
    checks.shape((weight.shape[0],), bias=bias)
    return weight.shape[0]


def _rows(array: Any) -> Any:
    """(..., features) as (rows, features)."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _form(weight: Any) -> Any:
    return weight.form if isinstance(weight, PreparedWeight) else weight
