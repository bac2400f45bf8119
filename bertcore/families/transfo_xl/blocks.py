"""The layer of Transformer-XL (Dai et al. 2019, arXiv:1901.02860, section 3.3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.execution import Pass
from bertcore.families.transfo_xl.relative_attention import RecurrentContext, RelativeAttention
from bertcore.nn import functional
from bertcore.nn.encoder_layer import make_norm
from bertcore.nn.layers import Linear
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec


class PositionBiases(Block):
    """The biases of the queries: for content (u of the paper) and for positions (v)."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        layer = spec.layers[0]
        flat = Layout((layer.num_heads, layer.head_size), axes=(0, 1), row_axes=2)
        self.content = Parameter(names["content_bias"], layout=flat)
        self.position = Parameter(names["position_bias"], layout=flat)


@dataclass(kw_only=True)
class SharedBiasesContext(RecurrentContext):
    """A RecurrentContext with the biases that all layers share."""

    biases: PositionBiases | None


class RecurrentAttention(RelativeAttention):
    """Relative attention to a sequence's own tokens and its memory."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int):
        layer = spec.layers[index]
        super().__init__(layer, index)
        width, inner = spec.hidden_size, layer.attention_size
        self.qkv = Linear(names["qkv"], in_features=width, out_features=3 * inner, bias=False)
        self.positions = Linear(names["positions"], in_features=width, out_features=inner, bias=False)
        self.output = Linear(names["attention_output"], in_features=inner, out_features=width, bias=False)
        self.biases = PositionBiases(names, spec) if spec.details.own_biases else None
        self.norm = make_norm(names, "attention_norm", layer)

    def other_weights(self) -> Iterator[Parameter]:
        """The map of distances, which tokens do not pass."""
        yield self.positions.weight

    def mix(self, run: Pass, source: Any, context: SharedBiasesContext) -> Any:
        """The attended values of all heads side by side, (tokens, heads * head_dim)."""
        relations, inner, memory = context.relations, self.num_heads * self.head_dim, context.memories[self.index]
        biases = context.biases if self.biases is None else self.biases
        qkv = self.qkv(run, relations.keys(run, source, None if memory is None else self.open(run, memory)))
        query, key, value = (
            functional.slice_columns(run, qkv, first=k * inner, last=(k + 1) * inner) for k in range(3)
        )
        if memory is not None:
            query = functional.take_rows(run, query, rows=relations.query_rows)
        queries = tuple(functional.add(run, query, bias.value(run)) for bias in (biases.content, biases.position))
        keys = key, value, self._position_keys(run, relations, self.positions.weight)
        return self._attend(run, queries, keys, context, self.output.weight)
