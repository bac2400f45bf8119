"""DeBERTa v2 (He et al. 2021, arXiv:2006.03654) and v3 (He et al. 2023, arXiv:2111.09543): positions in buckets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertcore import kernels
from bertcore.families import deberta
from bertcore.families.deberta.blocks import DisentangledAttention, DisentangledContext, Disentanglement
from bertcore.heads import ClassifierSpec
from bertcore.models.registry import HeadSpec, fewer_layers, register
from bertcore.models.spec import ConfigReader
from bertcore.nn import functional
from bertcore.nn.blocks import EncoderLayer
from bertcore.nn.layers import LayerNorm, drop
from bertcore.nn.layout import Layout
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor


@dataclass(frozen=True)
class ConvolutionSpec:
    """Settings of the convolution parallel to the first layer."""

    size: int  # the number of neighbouring tokens that it reads, an odd number
    groups: int  # the number of groups of channels, which do not mix
    activation: str  # the activation after it


class Convolution(Block):
    """LayerNorm(residual + activation(convolution(hidden))) along each sequence, with zeros beyond its ends.

    In training, dropout applies to the input of the activation.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        self.details, width = spec.details.convolution, spec.hidden_size
        self.dropout = spec.layers[0].dropout
        inputs = width // self.details.groups
        layout = Layout((width, inputs, self.details.size), axes=(0, 2, 1), row_axes=1)
        # A single group is a linear map of concatenated neighbouring tokens; no published model has several.
        use = "weight" if self.details.groups == 1 else "vector"
        self.weight = Parameter(f"{names['convolution']}.weight", use=use, layout=layout)
        self.bias = Parameter(f"{names['convolution']}.bias", shape=(width,), initial="zeros")
        self.norm = LayerNorm(names["convolution_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, run: Pass, hidden: Tensor, residual: Tensor, cu_seqlens: Any, is_real: Any = None) -> Tensor:
        """Map two (tokens, hidden) to one, zero where `is_real`, booleans (tokens,), is False."""
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
    """An encoder layer; in the first one a convolution, if the spec has one, reads the embeddings in parallel."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block]):
        super().__init__(names, spec, index, attention)
        self.convolution = Convolution(names, spec) if index == 0 and spec.details.convolution else None

    def __call__(self, run: Pass, hidden: Tensor, context: DisentangledContext) -> Tensor:
        encoded = super().__call__(run, hidden, context)
        if self.convolution is None:
            return encoded
        return self.convolution(run, hidden, encoded, context.cu_seqlens, context.positions.is_real)


def _blocks(dense, size, groups):
    """Yield the rows of each group and a view of its block of (rows, size * features): (rows, size, features)."""
    by_tap = dense.reshape(dense.shape[0], size, -1)
    count, features = by_tap.shape[0] // groups, by_tap.shape[2] // groups
    for group in range(groups):
        part = slice(group * count, (group + 1) * count)
        yield part, by_tap[part, :, group * features : (group + 1) * features]


@operation()
def block_diagonal(run: Pass, weight: Tensor, *, size: int, groups: int) -> Tensor:
    """Expand a convolution's weight, (rows, size * features of a group), to all features, (rows, size * features)."""
    dense = kernels.array_module(weight).zeros((weight.shape[0], groups * weight.shape[1]), weight.dtype)
    for part, block in _blocks(dense, size, groups):
        block[...] = weight[part].reshape(block.shape)

    def pullback(grad):
        total = weight.copy()  # every entry is overwritten
        for part, block in _blocks(grad, size, groups):
            total[part] = block.reshape(block.shape[0], -1)
        return (total,)

    return dense, pullback


_DEFAULTS = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
}


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    read, types = ConfigReader(config), deberta.position_types(config)
    distance, norm = deberta.max_distance(config), config.get("norm_rel_ebd", "none")
    norms = [part.strip() for part in norm.lower().split("|")] if isinstance(norm, str) else [norm]
    if any(kind not in ("none", "layer_norm") for kind in norms):
        raise ValueError(f"config: norm_rel_ebd is {norm!r}, expected 'none' or 'layer_norm'")
    details = Disentanglement(
        content_to_position="c2p" in types,
        position_to_content="p2c" in types,
        score_terms=1 + len(set(types)),
        max_distance=distance,
        buckets=_buckets(config, distance) if distance else 0,
        shares_maps=read.flag("share_att_key", False),
        has_norm="layer_norm" in norms,
        convolution=_convolution(read),
    )
    found = deberta.disentangled_spec(config, details, _DEFAULTS)
    if details.convolution is not None:
        found = replace(found, is_relative=True)
    head_size = found.hidden_size // found.num_heads
    read.require(attention_head_size=head_size)
    return found


def _buckets(config: Mapping[str, Any], distance: int) -> int:
    """Return position_buckets, 0 without buckets; half of them are for near distances, the others for all further."""
    read, value = ConfigReader(config), config.get("position_buckets")
    if value is None or (type(value) is int and value < 1):
        return 0
    buckets = read.size("position_buckets", 1)
    is_short = read.flag("position_biased_input", True) and read.size("max_position_embeddings", 512) <= buckets // 2
    if buckets < 2 or (distance <= buckets // 2 + 1 and not is_short):
        some = f"2 to {2 * distance - 3}, or " if distance > 2 else ""
        raise ValueError(
            f"config: position_buckets is {buckets}, expected {some}at most 0 for no buckets, with distances up to "
            f"{distance}"
        )
    return buckets


def _convolution(read: ConfigReader) -> ConvolutionSpec | None:
    size = read.count("conv_kernel_size", 0)
    if size == 0:
        return None
    groups, width = read.size("conv_groups", 1), read.size("hidden_size", _DEFAULTS["hidden_size"])
    if size % 2 == 0:
        raise ValueError(f"config: conv_kernel_size is {size}, expected an odd number")
    if width % groups:
        raise ValueError(f"config: conv_groups is {groups}, expected a divisor of hidden_size {width}")
    return ConvolutionSpec(size, groups, read.activation("conv_act", "tanh"))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a DeBERTa v2 or v3 config; the one for replaced tokens is as in v3's authors' code."""
    common = deberta.heads(read)
    replaced_tokens = ClassifierSpec(
        "mask_predictions.classifier",
        "tokens_and_first",
        dense="mask_predictions.dense",
        activation=read.activation("hidden_act", "gelu"),
        norm="mask_predictions.LayerNorm",
        norm_first=True,
        dropout=0.0,
        dense_dropout=0.0,
    )
    choice = common["sequence_classification"]
    return {**common, "multiple_choice": choice, "replaced_tokens": replaced_tokens}


DEBERTA_V2 = register(
    replace(
        deberta.DEBERTA,
        model_type="deberta-v2",
        architecture="DebertaV2",
        spec_from_config=spec,
        heads=heads,
        encoder_names=deberta.DEBERTA.encoder_names | {"relative_norm": "encoder.LayerNorm"},
        layer_names={part: name for part, name in deberta.DEBERTA.layer_names.items() if part != "qkv"}
        | {
            "query": "encoder.layer.{layer}.attention.self.query_proj",
            "key": "encoder.layer.{layer}.attention.self.key_proj",
            "value": "encoder.layer.{layer}.attention.self.value_proj",
            "position_key": "encoder.layer.{layer}.attention.self.pos_key_proj",
            "position_query": "encoder.layer.{layer}.attention.self.pos_query_proj",
            "convolution": "encoder.conv.conv",
            "convolution_norm": "encoder.conv.LayerNorm",
        },
        attention=DisentangledAttention,
        layer=ConvolutedLayer,
        generator=fewer_layers,
    )
)
