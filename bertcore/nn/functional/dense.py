"""Linear maps, normalisation and activations, each with its gradient rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertcore import kernels
from bertcore.kernels.activation import ACTIVATION, ActivationSaved
from bertcore.kernels.affine import AFFINE
from bertcore.kernels.dropout import DROPOUT
from bertcore.kernels.dropout_layer_norm import DROPOUT_LAYER_NORM
from bertcore.kernels.gated_activation import GATED_ACTIVATION
from bertcore.kernels.layer_norm import LAYER_NORM
from bertcore.kernels.linear import LINEAR
from bertcore.kernels.lstm import LSTM
from bertcore.kernels.rms_norm import RMS_NORM
from bertcore.nn.functional.rows import add
from bertcore.nn.operation import differentiable, operation, parameter_dtype
from bertcore.passes import Pass
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
    activated = _activation(run, total, activation=activation)
    return activated if residual is None else add(run, activated, residual)


@operation(has_step=True)
def _linear(
    run: Pass, input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None
) -> Any:
    return _with_pullback(run, input, weight, bias, residual, activation, needs_weight=True)


@_linear.inference
def _linear_forward(run, input, weight, bias, residual=None, *, activation=None):
    return LINEAR.forward(run.backend, input, weight, bias, activation, residual)


@operation()
def _linear_of_frozen(run: Pass, input: Any, bias: Any, residual: Any, *, weight: Any, activation: str | None) -> Any:
    """`linear` by a weight that has no gradient."""
    output, pullback = _with_pullback(run, input, weight, bias, residual, activation, needs_weight=False)

    def pullback_of_others(grad):
        grad_input, _, *others = pullback(grad)
        return grad_input, *others

    return output, pullback_of_others


def _with_pullback(run, input, weight, bias, residual, activation, *, needs_weight):
    output, saved = LINEAR.forward(run.backend, input, weight, bias, activation, residual, save=True)

    def pullback(grad):
        grad_before, kept = grad, saved
        if activation is not None:
            grad_before = ACTIVATION.backward(run.backend, grad, ActivationSaved(saved.before, activation))
            kept = saved._replace(before=None, activation=None)
        is_low = input.dtype.itemsize < 4
        options = needs_weight and not is_low, parameter_dtype(input)
        of_input, of_weight, of_bias = LINEAR.backward(run.backend, grad_before, kept, *options)
        if needs_weight and is_low:
            of_weight = WeightGradient(run, grad_before, input)
        return of_input, of_weight, of_bias, None if residual is None else grad

    return output, pullback


@dataclass(frozen=True)
class WeightGradient(Addend):
    """The gradient of a weight beside arrays of 16 bits: a parameter in float32 receives it without rounding."""

    run: Pass
    grad: Any
    input: Any

    def added_to(self, array: Any | None, dtype: Any = None) -> Any:
        options = {"dtype": dtype, "add_to": array, "backend": self.run.backend}
        return kernels.linear_weight_gradient(self.grad, self.input, **options)


layer_norm = differentiable(LAYER_NORM, "input", "weight", "bias", "residual", has_step=True)
"""Layer normalisation of input + residual over the last axis, by `eps`."""

rms_norm = differentiable(RMS_NORM, "input", "weight", "residual", has_step=True)
"""Root-mean-square normalisation of input + residual over the last axis, by `eps`."""

affine = differentiable(AFFINE, "input", "weight", "bias", "residual", has_step=True)
"""(input + residual) * weight + bias."""

gated_activation = differentiable(GATED_ACTIVATION, "input", has_step=True)
"""The half of (tokens, 2 * width) that `gate` says, through `activation`, times the other half, (tokens, width)."""

activation = _activation = differentiable(ACTIVATION, "input")
"""An elementwise function, `activation`."""

dropout = differentiable(DROPOUT, "input", "residual")
"""`input` with elements dropped by `p` and `seed`, plus `residual`."""

dropout_layer_norm = differentiable(DROPOUT_LAYER_NORM, "input", "weight", "bias", "residual")
"""Layer normalisation, by `eps`, of `input` with elements dropped by `p` and `seed`, plus `residual`."""

lstm = differentiable(LSTM, "input", "weight")
"""The hidden states of an LSTM over the sequences `cu_seqlens`; see `kernels.lstm`."""
