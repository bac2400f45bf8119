"""NomicBERT's layers: feed-forwards, gated or plain, and in v2 mixtures of experts in every second layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.kernels.precision import working_dtype
from bertcore.kernels.softmax import SOFTMAX, SoftmaxSaved
from bertcore.nn import functional
from bertcore.nn.encoder_layer import EncoderLayer, LayerContext, SelfAttention, Sublayer, make_norm
from bertcore.nn.layers import Linear, dropped_linear
from bertcore.nn.layout import Layout
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec, LayerSpec


@dataclass(frozen=True)
class MixtureSpec:
    """Attributes:
    every: layer i has a mixture if i % every is 1.
    experts: how many feed-forwards a mixture has.
    chosen: how many of them a token passes.
    """

    every: int
    experts: int
    chosen: int


class MixtureOfExperts(Sublayer):
    """The sum of the feed-forwards that a router finds most probable for a token, times these probabilities, which are
    not scaled to a sum of 1 (Shazeer et al. 2017, arXiv:1701.06538, section 2; Nussbaum and Duderstadt 2025,
    arXiv:2502.07972); then a bias that all experts share, the residual and the norm.

    All experts compute all tokens, side by side in one map, and those that are not chosen count nothing: a checkpoint
    has the experts in one tensor. In v2, with two experts of eight, that is 2.5 times the products of those chosen.
    """

    def __init__(self, names: Mapping[str, str], layer: LayerSpec, mixture: MixtureSpec):
        self.norm_first, self.dropout, self.activation = layer.norm_first, layer.dropout, layer.activation
        self.chosen, features = mixture.chosen, layer.hidden_size
        width = mixture.experts * layer.intermediate_size
        self.router = Linear(names["router"], in_features=features, out_features=mixture.experts, bias=False)
        self.expand = Parameter(names["experts_expand"], shape=(width, features), use="weight")
        layout = Layout.transposed(features, width)
        self.contract = Parameter(names["experts_contract"], use="weight", layout=layout)
        self.bias = Parameter(names["experts_bias"], shape=(features,), initial="zeros")
        self.norm = make_norm(names, "feed_forward_norm", layer)

    def mix(self, run: Pass, source: Any, context: LayerContext | None = None) -> Any:
        """(tokens, hidden) -> the experts' activations side by side, times their probabilities."""
        probabilities = highest_probabilities(run, self.router(run, source), count=self.chosen)
        expanded = functional.linear(run, source, self.expand.weight(run), None, activation=self.activation)
        return scale_groups(run, expanded, probabilities)

    def close(self, run: Pass, mixed: Any, residual: Any) -> Any:
        """`mixed` mapped to the layer's width and summed over the experts, plus the residual; then the norm."""
        given = mixed, self.contract.weight(run), self.bias.value(run), residual
        if self.dropout and run.seeds:
            total = dropped_linear(run, *given, None, self.dropout)
        else:
            total = functional.linear(run, *given)
        return total if self.norm_first or self.norm is None else self.norm(run, total)


class NomicLayer(EncoderLayer):
    """An encoder's layer, whose feed-forward may be a mixture; checkpoints call the first map of a plain one fc1."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block] = SelfAttention):
        layer, mixture = spec.layers[index], spec.details
        if layer.gate is None:
            names = {**names, "expand": names["plain_expand"]}
        super().__init__(names, spec, index, attention)
        if mixture is not None and index % mixture.every == 1:
            self.feed_forward = MixtureOfExperts(names, layer, mixture)


@operation()
def highest_probabilities(run: Pass, scores: Any, *, count: int) -> Any:
    """The softmax of `scores`, (tokens, classes), with 0 for all but its `count` highest; of equal ones the first."""
    xp = kernels.array_module(scores)
    probabilities, tokens = kernels.softmax(scores, backend=run.backend), xp.arange(scores.shape[0])
    chosen, others = xp.zeros(scores.shape, bool), probabilities.copy()
    for _ in range(count):
        best = others.argmax(axis=1)
        chosen[tokens, best], others[tokens, best] = True, -1

    def pullback(grad):
        return (SOFTMAX.backward(run.backend, grad * chosen, SoftmaxSaved(probabilities, 1)),)

    return probabilities * chosen, pullback


@operation()
def scale_groups(run: Pass, array: Any, factors: Any) -> Any:
    """(tokens, groups * width) and (tokens, groups) -> the first, each group of columns times its factor."""
    (tokens, columns), groups = array.shape, factors.shape[1]
    shape, by_group = (tokens, groups, columns // groups), factors[:, :, None]
    grouped = array.reshape(shape)

    def pullback(grad):
        grad = grad.reshape(shape)
        of_factors = (grad * grouped).sum(axis=2, dtype=working_dtype(array.dtype)).astype(array.dtype, copy=False)
        return (grad * by_group).reshape(array.shape), of_factors

    return (grouped * by_group).reshape(array.shape), pullback
