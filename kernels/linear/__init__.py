"""Affine map with a weight prepared once, and optional bias, activation and residual; forward and backward."""

import math
from typing import Any, NamedTuple

import numpy as np

from .. import checks, dispatch
from ..activation import ACTIVATION, ActivationSaved
from ..activation_names import ACTIVATIONS
from ..arguments import MISSING, Argument, Choice, Flag, Floats, ParameterDtype, check_axes
from ..arrays import Array, ArrayT, DTypeLike, NativeArray, Operand, is_bfloat16
from ..operation import Call, Function, Operation
from .prepared import LOW_PRECISION, PreparedWeight, group_count, is_grouped

MOST_INT8_FEATURES = 2**16  # 255 * 127 * 2^16 is the longest sum that fits an int32


class LinearSaved(NamedTuple):
    """Kept for the backward; `before` is the input of the activation, None without one."""

    input: Array
    weight: Array | PreparedWeight
    bias: Array | None
    before: Array | None
    activation: str | None


class _Weight(Argument):
    """(out_features, in_features): an array of the input's dtype, or a prepared weight that takes that."""

    is_array, schema = True, "Tensor?"
    plain = (PreparedWeight,)

    def check(self, name: str, weight: Operand | PreparedWeight | None, call: Call) -> Operand | PreparedWeight:
        input = call.value("input")
        if weight is None:
            raise TypeError(f"{name} is None, expected an array or a prepared weight")
        if isinstance(weight, PreparedWeight) and weight.takes_float32 and input.dtype != weight.dtype:
            if input.dtype != np.float32:
                expected = f"expected float32 for a weight prepared as {weight.dtype}"
                raise TypeError(f"input has dtype {input.dtype}, {expected}")
        elif weight.dtype != input.dtype:
            raise TypeError(f"{name} has dtype {weight.dtype}, expected {input.dtype} as input has")
        check_axes(name, tuple(weight.shape), ("out_features", "in_features"), call.sizes)
        return weight


def _forward(
    function: Function, backend: str, save: bool, input: Operand, weight: Operand | PreparedWeight,
    bias: Operand | None = None, activation: str | None = None, residual: Operand | None = None,
) -> Any:  # fmt: skip
    if not save:
        output = function(_rows(input), weight, bias, activation, None if residual is None else _rows(residual))
        return output if input.ndim == 2 else output.reshape((*input.shape[:-1], weight.shape[0]))
    before = function(_rows(input), weight, bias, None, None)
    if input.ndim != 2:
        before = before.reshape((*input.shape[:-1], weight.shape[0]))
    saved = LinearSaved(input, weight, bias, None if activation is None else before, activation)
    output = before if activation is None else ACTIVATION.forward(backend, before, activation)
    return output if residual is None else output + residual, saved


def _backward(
    function: Function, backend: str, grad_output: NativeArray, saved: LinearSaved, needs_weight: bool, dtype: np.dtype
) -> tuple[NativeArray | None, ...]:
    input, weight, bias, before, activation = saved
    if isinstance(weight, PreparedWeight) and weight.dtype == np.int8:
        raise TypeError("weight is prepared as int8, which has no gradients: expected float32, float64 or bfloat16")
    if activation is not None:
        grad_output = ACTIVATION.backward(backend, grad_output, ActivationSaved(before, activation))
    grad_input, *others = function(_rows(grad_output), _rows(input), weight, bias, needs_weight, dtype)
    return grad_input if input.ndim == 2 else grad_input.reshape(input.shape), *others


LINEAR = Operation(
    __package__,
    "linear",
    {
        "input": Floats("... in_features"),
        "weight": _Weight(),
        "bias": Floats("out_features", optional=True),
        "activation": Choice(None, *ACTIVATIONS),
        "residual": Floats("... out_features", optional=True),
    },
    saves=LinearSaved,
    kept={"before": Floats("... out_features", optional=True)},
    kept_shapes=lambda given: {"before": given.activation and (*given.input.shape[:-1], given.weight.shape[0])},
    gradients=("input", "weight", "bias"),
    same_gradient={"residual": "grad_output"},
    output=lambda saved: ((*saved.input.shape[:-1], saved.weight.shape[0]), saved.input.dtype),
    options={"needs_weight": Flag(), "dtype": ParameterDtype()},
    forward=_forward,
    backward=_backward,
)


def quantize_weight(weight: Array, *, per_group: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Round a weight to int8 with one scale for each output channel: weight is about values * scale[:, None].

    Args:
        weight: (out_features, in_features), a floating array in host memory, finite.
        per_group: whether to use one scale per 32 neighbouring weights of a channel, as in "int8_weight_only".

    Returns:
        values, int8 (out_features, in_features) from -127 to 127, and scale, float32 (out_features,): the channel's
        greatest magnitude over 127, so that a channel's scale depends only on itself; or, with groups, bfloat16
        (out_features, ceil(in_features / 32)).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape, and for inf or NaN (which row).
    """
    call = dispatch.open_call(__package__, "numpy", weight=weight)
    (weight,) = call.arrays
    checks.floating(call.backend, weight=weight)
    check_axes("weight", weight.shape, ("out_features", "in_features"), {})
    per_group = checks.boolean("per_group", per_group)
    wrong = ~np.isfinite(weight.astype(np.float32)).all(axis=1)
    if wrong.any():
        raise ValueError(f"weight[{wrong.argmax()}] holds inf or NaN (in float32), which int8 cannot represent")
    reference = dispatch.implementation(__package__, "numpy")
    return (reference.quantize_groups if per_group else reference.quantize_weight)(weight)


def prepare_weight(
    weight: Array, scale: Array | None = None, input_scale: Array | None = None, *, dtype: str | None = None,
    backend: str | None = None,
) -> PreparedWeight:  # fmt: skip
    """Convert a weight to its backend's form once, instead of at every call of `linear`; the array can then be freed.

    On the GPU, an array whose rows are whole 16-byte vectors already has that form and is not copied: it must not
    change while the prepared weight is in use.

    Args:
        weight: (out_features, in_features), as checkpoints store it; dtypes as for `linear`, and on the CPU bfloat16,
            or int8 together with `scale`.
        scale: the scale returned by `quantize_weight` for int8 values: float32 (out_features,); or for groups, bfloat16
            (out_features, groups), in which case inputs are not rounded and int8 only saves memory.
        input_scale: float32 (in_features,), for an int8 weight: multiplies each column of the input before rounding,
            so that columns of large numbers do not cost the others precision. The weight is then
            values * scale[:, None] * input_scale (Xiao et al. 2023, arXiv:2211.10438).
        dtype: "bfloat16", "int8" or "int8_weight_only" converts a floating weight to that form (on the CPU), which
            halves or quarters its memory and takes float32 inputs; by default the weight's own dtype.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape.
        BackendUnavailable: if the backend cannot run here.
    """
    checks.choice("dtype", dtype, (None, *LOW_PRECISION))
    call = dispatch.open_call(
        __package__, backend, optional=("scale", "input_scale"), weight=weight, scale=scale, input_scale=input_scale
    )
    weight, scale, input_scale = call.arrays
    if (weight.dtype != np.int8 and not is_bfloat16(weight.dtype)) or call.backend == "cupy":
        checks.floating(call.backend, weight=weight)
    check_axes("weight", weight.shape, ("out_features", "in_features"), {})
    if weight.dtype == np.int8:
        _check_int8(weight, scale, dtype)
        _check_input_scale(weight, scale, input_scale)
    else:
        _check_floating(call.backend, weight, scale, input_scale, dtype)
        weight, scale = _converted(weight, dtype, call.backend)
    return call.compute("prepare_weight", weight, scale, input_scale)


def _check_input_scale(weight: NativeArray, scale: NativeArray | None, input_scale: NativeArray | None) -> None:
    if input_scale is None:
        return
    if is_grouped(scale):
        raise ValueError("input_scale belongs to rounded inputs, but scale is of groups, so they are not rounded")
    if input_scale.dtype != np.float32:
        raise TypeError(f"input_scale has dtype {input_scale.dtype}, expected float32")
    checks.shape((weight.shape[1],), input_scale=input_scale)
    wrong = ~(np.isfinite(input_scale) & (input_scale > 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"input_scale[{at}] is {input_scale[at]}, expected finite numbers above 0")


def _check_int8(weight: NativeArray, scale: NativeArray | None, dtype: str | None) -> None:
    grouped = scale is not None and is_bfloat16(scale.dtype)
    if dtype not in (None, "int8_weight_only" if grouped else "int8"):
        raise ValueError(f"dtype is {dtype!r}, but weight is int8 already")
    if scale is None or not (grouped or scale.dtype == np.float32):
        found = "None" if scale is None else str(scale.dtype)
        raise TypeError(
            f"scale is {found}, expected a float32 array (out_features,) with an int8 weight, or bfloat16 for groups"
        )
    checks.shape((weight.shape[0], group_count(weight.shape[1])) if grouped else (weight.shape[0],), scale=scale)
    values = scale.astype(np.float32)
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(f"scale[{', '.join(map(str, at))}] is {scale[at]}, expected finite numbers of at least 0")
    if weight.shape[1] > MOST_INT8_FEATURES and not grouped:
        raise ValueError(f"weight has {weight.shape[1]} in_features, expected at most {MOST_INT8_FEATURES} with int8")


def _check_floating(backend: str, weight: Operand, scale: object, input_scale: object, dtype: str | None) -> None:
    if input_scale is not None:
        raise ValueError(f"input_scale belongs to an int8 weight, but weight has dtype {weight.dtype}")
    if scale is not None:
        raise ValueError(f"scale belongs to an int8 weight, but weight has dtype {weight.dtype}")
    if backend == "cupy" and dtype is not None:
        raise ValueError(f"dtype is {dtype!r}, but backend 'cupy' prepares a weight as it is: convert the array first")
    if dtype == "int8" and weight.shape[1] > MOST_INT8_FEATURES:
        raise ValueError(f"weight has {weight.shape[1]} in_features, expected at most {MOST_INT8_FEATURES} with int8")


def _converted(weight: NativeArray, dtype: str | None, backend: str) -> tuple[NativeArray, NativeArray | None]:
    """Return the weight in the wanted dtype, and its scale if that is int8."""
    if dtype in ("int8", "int8_weight_only"):
        return quantize_weight(weight, per_group=dtype == "int8_weight_only")
    if dtype == "bfloat16" and not is_bfloat16(weight.dtype):
        return dispatch.implementation(__package__, backend).round_weight(weight), None
    return weight, None


def linear(
    input: ArrayT,
    weight: Array | PreparedWeight,
    bias: ArrayT | None = None,
    *,
    activation: str | None = None,
    residual: ArrayT | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Compute activation(input @ weight.T + bias) + residual.

    Args:
        input: (..., in_features); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype
            on NumPy. All arrays share one dtype, except that a weight prepared in low precision takes float32 inputs
            and rounds each row by itself (reference.py has the formulas; Numba rounds to bfloat16 only on CPUs that
            multiply it faster than float32; int8_weight_only does not round inputs). After rounded inputs Numba's gelu
            is within 5e-5; with `save` it is exact.
        weight: (out_features, in_features), an array or a weight from `prepare_weight`.
        bias: (out_features,) or None.
        activation: a name as in `activation`, or None.
        residual: (..., out_features), added last, or None.
        save: also return the state that `linear_backward` needs; the activation and the residual are then not fused.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`), and if that is "auto", the
            one that a prepared weight belongs to.

    Returns:
        (..., out_features), of the kind and dtype of `input`. On CUDA, rows of 4,096 numbers or more begin on 16-byte
        boundaries, so there may be gaps between them. With `save`, a tuple of it and a `LinearSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, and for a weight prepared for another backend.
        BackendUnavailable: if the backend cannot run here.
    """
    return LINEAR.call(_backend_of(weight, backend), save, input, weight, bias, activation, residual)


def linear_backward(
    grad_output: ArrayT, saved: LinearSaved, *, needs_weight: bool = True, dtype: DTypeLike | None = None,
    backend: str | None = None,
) -> tuple[ArrayT, ArrayT | None, ArrayT | None]:  # fmt: skip
    """Return the gradients of `linear`.

    Args:
        grad_output: the gradient with respect to the output, (..., out_features), of the input's dtype.
        saved: the state that `linear` returned with `save=True`. A prepared weight is also packed for this direction at
            the first call, once for any number of calls. With one in bfloat16, the factors of both products are rounded
            as in `linear`; the gradients are float32. int8 weights have no gradients.
        needs_weight: whether to compute grad_weight, half of the work; unnecessary for a frozen weight.
        dtype: of the gradients of weight and bias: by default the input's, or float32 for inputs of lower precision.
        backend: as for `linear`; errors are the same.

    Returns:
        (grad_input, grad_weight, grad_bias) of shapes (..., in_features), (out_features, in_features) and
        (out_features,); grad_bias is None without a bias, grad_weight if it is not needed. The gradient of the residual
        is grad_output.
    """
    if type(saved) is LinearSaved:
        backend = _backend_of(saved.weight, backend)
        if saved.activation is not None and saved.before is None:
            raise TypeError(f"saved.before is None, {MISSING} beside activation {saved.activation!r}")
    return LINEAR.call_backward(backend, grad_output, saved, needs_weight=needs_weight, dtype=dtype)


def linear_weight_gradient(
    grad_output: ArrayT, input: ArrayT, *, dtype: DTypeLike | None = None, add_to: ArrayT | None = None,
    backend: str | None = None,
) -> ArrayT:  # fmt: skip
    """Compute grad_output.T @ input, the gradient of a weight of `linear`.

    It is summed in float32 (float64 for float64) and rounded once; for float32 parameters of 16-bit arrays not at all.

    Args:
        grad_output: the gradient with respect to the output, (..., out_features), of the input's dtype.
        input, backend: as for `linear`; errors are the same.
        dtype: of the result: by default the input's, or float32 for inputs of lower precision.
        add_to: an array to add the gradient to, in place, and to return. C-contiguous, (out_features, in_features), of
            one of those dtypes, not overlapping the others.

    Returns:
        (out_features, in_features), of the kind of `input`.
    """
    arrays = {"grad_output": grad_output, "input": input, "add_to": add_to}
    call = dispatch.open_call(__package__, backend, optional=("add_to",), **arrays)
    grad_output, input, add_to = call.arrays
    checks.floating(call.backend, input=input, grad_output=grad_output)
    sizes: dict[Any, Any] = {}
    check_axes("input", input.shape, ("...", "in_features"), sizes)
    check_axes("grad_output", grad_output.shape, ("...", "out_features"), sizes)
    dtype = checks.gradient_dtype(input, dtype)
    if add_to is not None:
        check_axes("add_to", add_to.shape, ("out_features", "in_features"), sizes)
        checks.updatable(add_to=add_to)
        checks.overlaps_none("add_to", {"add_to": add_to, "grad_output": grad_output, "input": input})
        dtype = checks.gradient_dtype(input, add_to.dtype, "add_to has dtype")
    return call.run("linear_weight_gradient", _rows(grad_output), _rows(input), dtype, add_to)


def _backend_of(weight: object, backend: str | None) -> str | None:
    """Return the backend of the call, a prepared weight's own. Raises ValueError for another choice."""
    if not isinstance(weight, PreparedWeight):
        return backend
    chosen = backend or dispatch.get_backend()
    if chosen not in (dispatch.AUTO, weight.backend):
        raise ValueError(
            f"weight was prepared for backend {weight.backend!r}, but this call runs on {chosen!r}: "
            f"prepare_weight(weight.to_array(), backend={chosen!r}) makes one for it"
        )
    return weight.backend


def _rows(array: Operand) -> Operand:
    """(..., features) as (rows, features)."""
    return array if array.ndim == 2 else array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
