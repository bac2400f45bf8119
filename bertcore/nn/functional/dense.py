"""Linear maps, normalisation and activations, each with its gradient rule."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from bertcore import kernels
from bertcore.kernels.activation import ACTIVATION, ActivationSaved
from bertcore.kernels.affine import AFFINE
from bertcore.kernels.arrays import NativeArray
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
from bertcore.tape import Addend, Tensor, Variable


class LowRankWeight(NamedTuple):
    """A weight that is weight + up @ down, where the low-rank product is trained and `weight` is not."""

    weight: Tensor | kernels.PreparedWeight  # (out_features, in_features)
    down: Tensor  # (rank, in_features)
    up: Tensor  # (out_features, rank)
    dropout: float  # the rate, in training, of the input of `down`


class ObservedWeight(NamedTuple):
    """A weight, and a function that is called with every input that it multiplies."""

    weight: Tensor | kernels.PreparedWeight
    observe: Callable[[Any], None]


Weight: TypeAlias = Tensor | kernels.PreparedWeight | LowRankWeight | ObservedWeight


def linear(
    run: Pass,
    input: Tensor,
    weight: Weight,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
) -> Tensor:
    """Return activation(input @ weight.T + bias) + residual; see `kernels.linear`.

    `weight` may be a LowRankWeight or an ObservedWeight.
    """
    if type(weight) is ObservedWeight:
        weight.observe(input)
        weight = weight.weight
    if type(weight) is LowRankWeight:
        return _linear_of_low_rank(run, input, weight, bias, residual, activation)
    if type(input) is Variable and type(weight) is not Variable:
        return _linear(run, input, weight, bias, residual, activation=activation, needs_weight=False)
    return _linear(run, input, weight, bias, residual, activation=activation)


def grouped_linear(
    run: Pass, input: Tensor, weight: Weight, *, offsets: Sequence[int], activation: str | None = None
) -> Tensor:
    """Return activation(input @ weight.T) of groups of rows, each with its own part of the weight.

    Maps (rows, in_features), group after group, to (rows, out_features). The groups' weights are one below the other,
    (groups * out_features, in_features), in an array, a prepared weight or an ObservedWeight; `offsets` are the first
    row of each group, and the number of rows, in host memory.
    """
    if type(weight) is ObservedWeight:
        weight.observe(input)
        weight = weight.weight
    if type(input) is Variable and type(weight) is not Variable:
        return _grouped(run, input, weight, offsets=offsets, activation=activation, needs_weight=False)
    return _grouped(run, input, weight, offsets=offsets, activation=activation)


@operation()
def _grouped(run: Pass, input: Tensor, weight: Weight, *, offsets: Sequence[int], activation: str | None,
             needs_weight: bool = True) -> Tensor:  # fmt: skip
    """Compute `grouped_linear`; without `needs_weight` the weight has no gradient."""
    xp, groups = kernels.array_module(input), _groups(weight, offsets)
    computed = [
        _with_pullback(run, input[rows], share, None, None, activation, needs_weight=needs_weight)
        for rows, share in groups
    ]

    def pullback(grad):
        found = [of_group(grad[rows]) for (rows, _), (_, of_group) in zip(groups, computed, strict=True)]
        of_weight = None
        if needs_weight:
            of_weight = xp.empty(weight.shape, parameter_dtype(input))  # every entry is written
            size = weight.shape[0] // len(groups)
            for group, (_, part, *_) in enumerate(found):
                part = part.added_to(None, of_weight.dtype) if isinstance(part, WeightGradient) else part
                of_weight[group * size : (group + 1) * size] = part
        return xp.concatenate([of_input for of_input, *_ in found]), of_weight

    return xp.concatenate([output for output, _ in computed]), pullback


@_grouped.inference
def _grouped_forward(run, input, weight, *, offsets, activation):
    outputs = [
        LINEAR.forward(run.backend, input[rows], share, None, activation, None)
        for rows, share in _groups(weight, offsets)
    ]
    return kernels.array_module(input).concatenate(outputs)


def _groups(weight, offsets):
    """Return (the slice of its rows, its weight) for each group."""
    count = len(offsets) - 1
    if isinstance(weight, kernels.PreparedWeight):
        shares = weight.parts(count)
    else:
        size = len(weight) // count
        shares = [weight[group * size : (group + 1) * size] for group in range(count)]
    return list(zip(itertools.starmap(slice, itertools.pairwise(offsets)), shares, strict=True))


def _linear_of_low_rank(
    run: Pass, input: Tensor, weight: LowRankWeight, bias: Tensor, residual: Tensor, activation: str | None
) -> Tensor:
    """Add (input @ down.T) @ up.T to the weight's product, as up @ down would cost as much as a weight."""
    plain = linear(run, input, weight.weight, bias, residual if activation is None else None)
    if weight.dropout and run.seeds:
        input = dropout(run, input, p=weight.dropout, seed=run.seeds.draw())
    total = linear(run, linear(run, input, weight.down, None), weight.up, None, plain)
    if activation is None:
        return total
    activated = _activation(run, total, activation=activation)
    return activated if residual is None else add(run, activated, residual)


@operation(has_step=True)
def _linear(run: Pass, input: Tensor, weight: Weight, bias: Tensor, residual: Tensor | None = None, *,
            activation: str | None = None, needs_weight: bool = True) -> Tensor:  # fmt: skip
    """Compute `linear`; without `needs_weight` the weight has no gradient."""
    return _with_pullback(run, input, weight, bias, residual, activation, needs_weight=needs_weight)


@_linear.inference
def _linear_forward(run, input, weight, bias, residual=None, *, activation=None):
    return LINEAR.forward(run.backend, input, weight, bias, activation, residual)


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
    """A weight's gradient from 16-bit arrays, which a float32 parameter receives without rounding."""

    run: Pass
    grad: NativeArray
    input: NativeArray

    def added_to(self, array: Any | None, dtype: Any = None) -> NativeArray:
        options = {"dtype": dtype, "add_to": array, "backend": self.run.backend}
        return kernels.linear_weight_gradient(self.grad, self.input, **options)


layer_norm = differentiable(LAYER_NORM, "input", "weight", "bias", "residual", has_step=True)
"""Layer normalisation of input + residual over the last axis, with `eps`."""

rms_norm = differentiable(RMS_NORM, "input", "weight", "residual", has_step=True)
"""Root-mean-square normalisation of input + residual over the last axis, with `eps`."""

affine = differentiable(AFFINE, "input", "weight", "bias", "residual", has_step=True)
"""(input + residual) * weight + bias."""

gated_activation = differentiable(GATED_ACTIVATION, "input", has_step=True)
"""`activation` of the half `gate` of (tokens, 2 * width), times the other half: (tokens, width)."""

activation = _activation = differentiable(ACTIVATION, "input")
"""The elementwise function `activation`."""

dropout = differentiable(DROPOUT, "input", "residual")
"""`input` after dropout with `p` and `seed`, plus `residual`."""

dropout_layer_norm = differentiable(DROPOUT_LAYER_NORM, "input", "weight", "bias", "residual")
"""Layer normalisation, with `eps`, of `input` after dropout with `p` and `seed`, plus `residual`."""

lstm = differentiable(LSTM, "input", "weight")
"""The hidden states of an LSTM over the sequences `cu_seqlens`; see `kernels.lstm`."""
