"""Linear maps, normalisation and activations, each with its gradient rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.nn.functional.rows import add
from bertcore.nn.operation import operation
from bertcore.tape import Addend, Variable


class LowRankWeight(NamedTuple):
    """A weight that is weight + up @ down, where the product of low rank is trained and `weight` is not.

    Attributes:
        weight: (out_features, in_features), an array or prepared.
        down: (rank, in_features).
        up: (out_features, rank).
        dropout: the rate at which, in training, what `down` multiplies is dropped.
    """

    weight: Any
    down: Any
    up: Any
    dropout: float


class ObservedWeight(NamedTuple):
    """A weight, and a function that is called with every input that it multiplies."""

    weight: Any
    observe: Callable[[Any], None]


def linear(
    run: Pass, input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None
) -> Any:
    """activation(input @ weight.T + bias) + residual; see `kernels.linear`.

    `weight` may be a LowRankWeight or an ObservedWeight.
    """
    if type(weight) is ObservedWeight:
        weight.observe(input)
        weight = weight.weight
    if type(weight) is LowRankWeight:
        return _linear_of_low_rank(run, input, weight, bias, residual, activation)
    if type(input) is Variable and type(weight) is not Variable:
        return _linear_of_frozen(run, input, bias, residual, weight=weight, activation=activation)
    return _linear(run, input, weight, bias, residual, activation=activation)


def _linear_of_low_rank(
    run: Pass, input: Any, weight: LowRankWeight, bias: Any, residual: Any, activation: str | None
) -> Any:
    """(input @ down.T) @ up.T is added to the product of the weight: up @ down would cost as much as a weight."""
    plain = linear(run, input, weight.weight, bias, residual if activation is None else None)
    if weight.dropout and run.seeds:
        input = dropout(run, input, p=weight.dropout, seed=run.seeds.draw())
    total = linear(run, linear(run, input, weight.down, None), weight.up, None, plain)
    if activation is None:
        return total
    activated = _activation(run, total, name=activation)
    return activated if residual is None else add(run, activated, residual)


@operation(has_step=True)
def _linear(
    run: Pass, input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None
) -> Any:
    return _with_pullback(run, input, weight, bias, residual, activation, needs_weight=True)


@_linear.inference
def _linear_forward(run, input, weight, bias, residual=None, *, activation=None):
    return kernels.linear(input, weight, bias, activation=activation, residual=residual, backend=run.backend)


@operation()
def _linear_of_frozen(run: Pass, input: Any, bias: Any, residual: Any, *, weight: Any, activation: str | None) -> Any:
    """`linear` by a weight that has no gradient."""
    output, pullback = _with_pullback(run, input, weight, bias, residual, activation, needs_weight=False)

    def pullback_of_others(grad):
        grad_input, _, *others = pullback(grad)
        return grad_input, *others

    return output, pullback_of_others


def _with_pullback(run, input, weight, bias, residual, activation, *, needs_weight):
    backend = run.backend
    before = kernels.linear(input, weight, bias, backend=backend)  # kept: the activation's gradient needs it
    output = before if activation is None else kernels.activation(before, activation, backend=backend)

    def pullback(grad):
        grad_before = grad
        if activation is not None:
            grad_before = kernels.activation_backward(grad, before, activation, backend=backend)
        is_low = input.dtype.itemsize < 4
        options = {"needs_weight": needs_weight and not is_low, "dtype": _parameter_dtype(input), "backend": backend}
        of_input, of_weight, of_bias = kernels.linear_backward(grad_before, input, weight, bias, **options)
        if needs_weight and is_low:
            of_weight = WeightGradient(run, grad_before, input)
        return of_input, of_weight, of_bias, None if residual is None else grad

    return output if residual is None else output + residual, pullback


def _parameter_dtype(input):
    """That of the gradients of parameters beside an input: what sums are taken in is not rounded to 16 bits."""
    return "float32" if input.dtype.itemsize < 4 else None


@dataclass(frozen=True)
class WeightGradient(Addend):
    """The gradient of a weight beside arrays of 16 bits, which is summed, and added to what a parameter in float32 has,
    without having been rounded."""

    run: Pass
    grad: Any
    input: Any

    def added_to(self, array: Any | None, dtype: Any = None) -> Any:
        options = {"dtype": dtype, "add_to": array, "backend": self.run.backend}
        return kernels.linear_weight_gradient(self.grad, self.input, **options)


@operation(has_step=True)
def layer_norm(run: Pass, input: Any, weight: Any, bias: Any, residual: Any = None, *, eps: float) -> Any:
    """Layer normalisation of input + residual over the last axis; see `kernels.layer_norm`."""

    def pullback(grad):
        options = {"residual": residual, "dtype": _parameter_dtype(input), "backend": run.backend}
        grads = kernels.layer_norm_backward(grad, input, weight, bias, eps, **options)
        return *grads, None if residual is None else grads[0]

    return kernels.layer_norm(input, weight, bias, eps, residual=residual, backend=run.backend), pullback


@operation(has_step=True)
def rms_norm(run: Pass, input: Any, weight: Any, residual: Any = None, *, eps: float) -> Any:
    """Root-mean-square normalisation of input + residual over the last axis; see `kernels.rms_norm`."""

    def pullback(grad):
        grads = kernels.rms_norm_backward(grad, input, weight, eps, residual=residual, backend=run.backend)
        return *grads, None if residual is None else grads[0]

    return kernels.rms_norm(input, weight, eps, residual=residual, backend=run.backend), pullback


@operation(has_step=True)
def affine(run: Pass, input: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """(input + residual) * weight + bias; see `kernels.affine`."""

    def pullback(grad):
        grads = kernels.affine_backward(grad, input, weight, bias, residual=residual, backend=run.backend)
        return *grads, None if residual is None else grads[0]

    return kernels.affine(input, weight, bias, residual=residual, backend=run.backend), pullback


@operation(has_step=True)
def gated_activation(run: Pass, input: Any, *, name: str, gate: str) -> Any:
    """The half of (tokens, 2 * width) that `gate` says, through an activation, times the other half, (tokens, width);
    see `kernels.gated_activation`."""

    def pullback(grad):
        return (kernels.gated_activation_backward(grad, input, name, gate=gate, backend=run.backend),)

    return kernels.gated_activation(input, name, gate=gate, backend=run.backend), pullback


@operation()
def activation(run: Pass, input: Any, *, name: str) -> Any:
    """An activation by its name in `kernels.activation`."""

    def pullback(grad):
        return (kernels.activation_backward(grad, input, name, backend=run.backend),)

    return kernels.activation(input, name, backend=run.backend), pullback


_activation = activation  # where an argument has the name


@operation()
def dropout(run: Pass, input: Any, residual: Any = None, *, p: float, seed: int) -> Any:
    """`input` with elements dropped, plus `residual`; see `kernels.dropout`."""

    def pullback(grad):
        return kernels.dropout_backward(grad, p, seed, backend=run.backend), None if residual is None else grad

    return kernels.dropout(input, p=p, seed=seed, residual=residual, backend=run.backend), pullback


@operation()
def dropout_layer_norm(
    run: Pass, input: Any, weight: Any, bias: Any, residual: Any, *, eps: float, p: float, seed: int
) -> Any:
    """Layer normalisation of `input` with elements dropped, plus `residual`; see `kernels.dropout_layer_norm`."""
    arrays, options = (input, residual, weight, bias), {"eps": eps, "p": p, "seed": seed, "backend": run.backend}

    def pullback(grad):
        grads = kernels.dropout_layer_norm_backward(grad, *arrays, **options, dtype=_parameter_dtype(input))
        grad_input, grad_residual, *of_parameters = grads
        return grad_input, *of_parameters, grad_residual

    return kernels.dropout_layer_norm(*arrays, **options), pullback
