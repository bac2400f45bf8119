"""What follows from a config: parameters, FLOPs and memory of a model, found without making its arrays.

FLOPs are those of the products of the encoder (poolers and heads, norms and activations are not counted), per token:

    2 * W + the sum over layers of 2 * K * (A * (1 + R) + A)

W: the numbers in the weights of the linear maps that a token passes, shared layers as often as it passes them;
K: the tokens that it sees, on average: all of a sequence of `length`, or those of a window, or those before it;
A: the width of queries, keys and values; R: the terms of relative position beside the product of query and key (two in
DeBERTa, one in XLNet).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import DTYPES
from bertcore.kernels.linear.prepared import group_count
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import LayerSpec

if TYPE_CHECKING:
    from bertcore.models.model import Model

LENGTH = 128  # tokens of a sequence, by default


@dataclass(frozen=True)
class Figures:
    """A model in numbers.

    Attributes:
        family: its model_type.
        layers, heads: of the encoder.
        hidden_size, intermediate_size, embedding_size: widths, as `EncoderSpec` has them.
        attention_size: the width of all heads' queries.
        vocabulary, token_types: rows of the tables.
        positions: how many tokens a sequence may have; None where there is no limit.
        parameters: of the base model, with its pooler where the family has one.
        embeddings: those of them in tables that are looked up.
        wide_embeddings: what the tables would have if they were as wide as the layers.
        layer_parameters: those of the layers.
        unshared_layer_parameters: what the layers would have if none shared another's.
        length: of the sequences that the FLOPs are of.
        weights_passed: W above.
        flops_per_token: see above.
        megabytes: 10^6 bytes of the parameters by dtype: on a CPU bfloat16 and int8 leave vectors in float32, and int8
            has the tables in bfloat16.
        classes: the models of bertcore that the family has.
    """

    family: str
    layers: int
    heads: int
    hidden_size: int
    intermediate_size: int
    embedding_size: int
    attention_size: int
    vocabulary: int
    token_types: int
    positions: int | None
    parameters: int
    embeddings: int
    wide_embeddings: int
    layer_parameters: int
    unshared_layer_parameters: int
    length: int
    weights_passed: int
    flops_per_token: int
    megabytes: Mapping[str, float]
    classes: tuple[str, ...]


def figures(config: Mapping[str, Any], length: int = LENGTH) -> Figures:
    """The figures of the model of a config; ValueError if it cannot be made.

    A `length` beyond the model's longest sequence counts as that.
    """
    from bertcore.models.architectures import models_of

    models = models_of(config)
    model = models["AutoModel"]
    spec = model.spec
    length = min(length, spec.longest_sequence or length)
    embeddings = sum(_size(parameter) for parameter in model.parameters() if parameter.uses == {"table"})
    layers = model.encoder.layers
    return Figures(
        family=config["model_type"],
        layers=spec.num_layers,
        heads=spec.num_heads,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.layers[0].intermediate_size,
        embedding_size=spec.embedding_size,
        attention_size=spec.layers[0].attention_size,
        vocabulary=spec.vocab_size,
        token_types=spec.type_vocab_size,
        positions=spec.longest_sequence,
        parameters=model.num_parameters(),
        embeddings=embeddings,
        wide_embeddings=embeddings * spec.hidden_size // spec.embedding_size,
        layer_parameters=_sizes(dict.fromkeys(layers)),
        unshared_layer_parameters=_sizes(layers),
        length=length,
        weights_passed=weights_passed(model),
        flops_per_token=flops_per_token(model, length),
        megabytes={dtype: _bytes(model, dtype) / 1e6 for dtype in DTYPES if dtype != "float64"},
        classes=tuple(models),
    )


def weights_passed(model: Model) -> int:
    """How many numbers there are in the weights of the linear maps that each token passes on its way up."""
    blocks = [model.encoder.embeddings, *model.encoder.layers]
    return sum(_size(parameter) for block in blocks for parameter in block.token_weights())


def flops_per_token(model: Model, length: int) -> int:
    """The FLOPs of the encoder's products for one token of a sequence of `length`; see the top."""
    attention = sum(
        2 * _keys(layer, length) * layer.attention_size * (2 + block.attention.position_terms)
        for layer, block in zip(model.spec.layers, model.encoder.layers, strict=True)
    )
    return round(2 * weights_passed(model) + attention)


def _keys(layer: LayerSpec, length: int) -> float:
    """How many tokens one of a sequence of `length` sees, on average."""
    before, after = layer.window or (length, length)
    if layer.is_causal:
        after = 0
    places = np.arange(length)
    return float((np.minimum(places, before) + np.minimum(length - 1 - places, after) + 1).mean())


def _size(parameter: Parameter) -> int:
    return sum(math.prod(shape) for shape in parameter.expected.values())


def _sizes(blocks: Iterable[Block]) -> int:
    """The parameters of all blocks."""
    return sum(_size(parameter) for block in blocks for parameter in block.parameters())


def _bytes(model: Model, dtype: str) -> int:
    """The memory of the parameters of a model of that dtype."""
    if dtype in ("float32", "float16"):
        return model.num_parameters() * (4 if dtype == "float32" else 2)
    return sum(_low_bytes(parameter, dtype) for parameter in model.parameters())


def _low_bytes(parameter: Parameter, dtype: str) -> int:
    """The bytes of a parameter in low precision on a CPU: weights in it, tables in bfloat16, vectors in float32."""
    size, found = _size(parameter), 0
    if "weight" in parameter.uses:
        rows, columns = parameter.shape
        scales = {"int8": 4 * rows, "int8_weight_only": 2 * rows * group_count(columns)}
        found += 2 * size if dtype == "bfloat16" else size + scales[dtype]
    if parameter.uses != {"weight"}:
        found += 4 * size if parameter.uses == {"vector"} else 2 * size
    return found
