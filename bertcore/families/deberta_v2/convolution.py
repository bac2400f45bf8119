"""The convolution beside DeBERTa v2's first layer (He et al. 2021, arXiv:2006.03654, its released models)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.families.deberta.blocks import DisentangledContext, Disentanglement
from bertcore.nn import functional
from bertcore.nn.encoder_layer import EncoderLayer
from bertcore.nn.layers import LayerNorm, drop
from bertcore.nn.layout import Layout
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec


@dataclass(frozen=True)
class ConvolutionSpec:
    """Attributes:
    size: how many neighbouring tokens it sees, an odd number.
    groups: how many groups its channels are divided into, which do not see each other.
    activation: after it.
    """

    size: int
    groups: int
    activation: str


@dataclass(frozen=True, kw_only=True)
class BucketedDisentanglement(Disentanglement):
    """What DeBERTa v2 and v3 vary.

    Attributes:
        convolution: beside the first layer, or None.
    """

    convolution: ConvolutionSpec | None


class Convolution(Block):
    """LayerNorm(residual + activation(convolution(hidden))) along each sequence, with zeros beyond its ends.

    In training what the activation is given is dropped.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        self.details, width = spec.details.convolution, spec.hidden_size
        self.dropout = spec.layers[0].dropout
        inputs = width // self.details.groups
        layout = Layout((width, inputs, self.details.size), axes=(0, 2, 1), row_axes=1)
        # One group is a linear map of neighbouring tokens side by side; no published model has several.
        use = "weight" if self.details.groups == 1 else "vector"
        self.weight = Parameter(f"{names['convolution']}.weight", use=use, layout=layout)
        self.bias = Parameter(f"{names['convolution']}.bias", shape=(width,), initial="zeros")
        self.norm = LayerNorm(names["convolution_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, run: Pass, hidden: Any, residual: Any, cu_seqlens: Any, is_real: Any = None) -> Any:
        """(tokens, hidden) twice -> (tokens, hidden), zero for tokens that are not `is_real`, (tokens,) booleans."""
        size, groups = self.details.size, self.details.groups
        near = functional.take_neighbours(
            run, hidden, cu_seqlens=cu_seqlens, distances=range(-(size // 2), size // 2 + 1)
        )
        weight = (
            self.weight.weight(run)
            if groups == 1
            else block_diagonal(run, self.weight.value(run), size=size, groups=groups)
        )
        activation = self.details.activation
        if self.dropout and run.seeds:
            mixed = drop(run, functional.linear(run, near, weight, self.bias.value(run)), self.dropout)
            mixed = functional.activation(run, mixed, activation=activation)
        else:
            mixed = functional.linear(run, near, weight, self.bias.value(run), activation=activation)
        normed = self.norm(run, mixed, residual)
        return normed if is_real is None else functional.scale(run, normed, factor=is_real[:, None])


class ConvolutedLayer(EncoderLayer):
    """An encoder's layer; if the spec has a convolution, it stands beside the first layer: both read the embeddings."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block]):
        super().__init__(names, spec, index, attention)
        self.convolution = Convolution(names, spec) if index == 0 and spec.details.convolution else None

    def __call__(self, run: Pass, hidden: Any, context: DisentangledContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        encoded = super().__call__(run, hidden, context)
        if self.convolution is None:
            return encoded
        return self.convolution(run, hidden, encoded, context.cu_seqlens, context.positions.is_real)


def _blocks(dense, size, groups):
    """(rows, size * features) -> of each group its rows and features, (rows, size, features) views."""
    by_tap = dense.reshape(dense.shape[0], size, -1)
    count, features = by_tap.shape[0] // groups, by_tap.shape[2] // groups
    for group in range(groups):
        part = slice(group * count, (group + 1) * count)
        yield part, by_tap[part, :, group * features : (group + 1) * features]


@operation()
def block_diagonal(run: Pass, weight: Any, *, size: int, groups: int) -> Any:
    """A convolution's weight (rows, size * features of a group) as one for all features, (rows, size * features)."""
    dense = kernels.array_module(weight).zeros((weight.shape[0], groups * weight.shape[1]), weight.dtype)
    for part, block in _blocks(dense, size, groups):
        block[...] = weight[part].reshape(block.shape)

    def pullback(grad):
        total = weight.copy()  # every entry is overwritten
        for part, block in _blocks(grad, size, groups):
            total[part] = block.reshape(block.shape[0], -1)
        return (total,)

    return dense, pullback
