"""The smallest blocks: a linear map, three norms, an embedding table."""

from typing import Any

import numpy as np

from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter, PerVersion
from bertcore.passes import Pass
from bertcore.tape import Tensor, Variable


class Linear(Block):
    """activation(input @ weight.T + bias) + residual.

    `names` are the checkpoint's, without ".weight" and ".bias"; several make one joined map with concatenated outputs,
    of width `out_features` each. With `is_transposed` the checkpoint stores the weight as (in_features, out_features);
    `layout` is for any other form.
    """

    def __init__(
        self,
        *names: str,
        in_features: int,
        out_features: int,
        activation: str | None = None,
        bias: bool = True,
        is_transposed: bool = False,
        layout: Layout | None = None,
    ):
        self.activation = activation
        if is_transposed:
            layout = Layout.transposed(out_features, in_features)
        weights = (f"{name}.weight" for name in names)
        self.weight = Parameter(*weights, shape=(out_features, in_features), use="weight", layout=layout)
        self.bias = None
        if bias:
            self.bias = Parameter(*(f"{name}.bias" for name in names), shape=(out_features,), initial="zeros")

    def __call__(self, run: Pass, input: Tensor, residual: Tensor | None = None, *, dropout: float = 0.0) -> Tensor:
        """Map (tokens, in_features) to (tokens, out_features of all names); `dropout` is the rate in training."""
        bias = None if self.bias is None else self.bias.value(run)
        given = input, self.weight.weight(run), bias, residual
        if dropout and run.seeds:
            return dropped_linear(run, *given, self.activation, dropout)
        return functional.linear(run, *given, activation=self.activation)


def dropped_linear(
    run: Pass, input: Tensor, weight: Any, bias: Tensor, residual: Tensor, activation: str | None, rate: float
) -> Tensor:
    """Return `functional.linear` with dropout before the residual is added."""
    output = functional.linear(run, input, weight, bias, activation=activation)
    return functional.dropout(run, output, residual, p=rate, seed=run.seeds.draw())


def drop(run: Pass, input: Tensor, rate: float) -> Tensor:
    """Return `input`, with dropout in training."""
    if not rate or not run.seeds:
        return input
    return functional.dropout(run, input, p=rate, seed=run.seeds.draw())


class LayerNorm(Block):
    """Layer normalisation over the features of input + residual."""

    def __init__(self, name: str, *, features: int, eps: float, bias: bool = True):
        self.eps = eps
        self.weight = Parameter(f"{name}.weight", shape=(features,), initial="ones")
        self.bias = Parameter(f"{name}.bias", shape=(features,), initial="zeros") if bias else None

    def __call__(self, run: Pass, input: Tensor, residual: Tensor | None = None, *, dropout: float = 0.0) -> Tensor:
        """Map (tokens, features) to (tokens, features); `dropout` is the rate of `input` in training."""
        given = input, self.weight.value(run), None if self.bias is None else self.bias.value(run), residual
        if dropout and run.seeds:
            return functional.dropout_layer_norm(run, *given, eps=self.eps, p=dropout, seed=run.seeds.draw())
        return functional.layer_norm(run, *given, eps=self.eps)


class RMSNorm(Block):
    """Root-mean-square normalisation over the features of input + residual. Raises ValueError for a bias."""

    def __init__(self, name: str, *, features: int, eps: float, bias: bool = False):
        if bias:
            raise ValueError(f"{name} has bias {bias}, expected False: a root-mean-square norm has none")
        self.eps = eps
        self.weight = Parameter(f"{name}.weight", shape=(features,), initial="ones")

    def __call__(self, run: Pass, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, features) to (tokens, features)."""
        return functional.rms_norm(run, input, self.factors(run), residual, eps=self.eps)

    def factors(self, run: Pass) -> Tensor:
        """Return the factors of the features, (features,)."""
        return self.weight.value(run)


class ShiftedRMSNorm(RMSNorm):
    """A root-mean-square norm whose factors are 1 + weight, as in Gemma."""

    def __init__(self, name: str, *, features: int, eps: float, bias: bool = False):
        super().__init__(name, features=features, eps=eps, bias=bias)
        self.weight.initial = "zeros"
        self._factors: PerVersion[Any] = PerVersion()

    def factors(self, run: Pass) -> Tensor:
        weight = self.weight.value(run)
        if type(weight) is Variable:
            return functional.shift(run, weight, by=1)
        return self._factors.get(run, self.weight.version, lambda: weight + 1)


class Embedding(Block):
    """A table of vectors, looked up by integer ids; looking up `padding_row` gives it no gradient."""

    def __init__(self, name: str, *, rows: int, features: int, padding_row: int | None = None):
        self.padding_row = padding_row
        self.table = Parameter(f"{name}.weight", shape=(rows, features), use="table")

    @property
    def weight(self) -> np.ndarray:
        """The table in host memory, (rows, features), read-only."""
        view = self.table.array().view()
        view.flags.writeable = False
        return view

    def __call__(self, run: Pass, ids: NativeArray) -> Tensor:
        """Map integers, (tokens,), to (tokens, features)."""
        return functional.take_rows(run, self.table.value(run), rows=ids, padding_row=self.padding_row)
