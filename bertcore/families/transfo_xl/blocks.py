"""The layer of Transformer-XL (Dai et al. 2019, arXiv:1901.02860, section 3.3)."""

from collections.abc import Mapping
from typing import Any

from bertcore.families.transfo_xl.relative_attention import RelativeAttention
from bertcore.nn import functional
from bertcore.nn.encoder import FeedForward, LayerContext
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter


class PositionBiases(Block):
    """What stands in the query's place for content (u of the paper) and for positions (v)."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        flat = Layout((spec.num_heads, spec.details.head_dim), axes=(0, 1), row_axes=2)
        self.content = Parameter(names["content_bias"], layout=flat)
        self.position = Parameter(names["position_bias"], layout=flat)


class RecurrentAttention(RelativeAttention):
    """Relative attention to a sequence's own tokens and its memory; `biases` are the layer's own or those of all."""

    def __init__(self, names: Mapping[str, str], spec: Any, biases: PositionBiases):
        super().__init__(spec)
        width, inner = spec.hidden_size, self.num_heads * self.head_dim
        self.is_pre_norm = spec.details.is_pre_norm
        self.qkv = Linear(names["qkv"], in_features=width, out_features=3 * inner, bias=False)
        self.positions = Linear(names["positions"], in_features=width, out_features=inner, bias=False)
        self.output = Parameter(f"{names['attention_output']}.weight", shape=(width, inner), use="weight")
        self.biases = biases
        self.norm = LayerNorm(names["attention_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, hidden: Any, memory: Any, context: LayerContext) -> Any:
        """(tokens, hidden) and (sequences * memory, hidden) or None -> (tokens, hidden)."""
        relations, inner = context.shared, self.num_heads * self.head_dim
        seen = relations.keys(hidden, memory)
        qkv = self.qkv(self.norm(seen) if self.is_pre_norm else seen)
        query, key, value = (functional.slice_columns(qkv, first=k * inner, last=(k + 1) * inner) for k in range(3))
        if memory is not None:
            query = functional.take_rows(query, rows=relations.query_rows)
        queries = tuple(functional.add(query, bias.value) for bias in (self.biases.content, self.biases.position))
        attended = self._attend(queries, (key, value, self._position_keys(relations, self.positions.weight)), context)
        attended = functional.linear(attended, self.output.weight, None, hidden)
        return attended if self.is_pre_norm else self.norm(attended)


class RecurrentFeedForward(FeedForward):
    """The norm comes after, as in FeedForward, or before."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        super().__init__(names, spec)
        self.is_pre_norm = spec.details.is_pre_norm

    def __call__(self, hidden: Any) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        if not self.is_pre_norm:
            return super().__call__(hidden)
        return self.contract(self.expand(self.norm(hidden)), residual=hidden)


class RecurrentLayer(Block):
    """Attention, then feed-forward."""

    def __init__(self, names: Mapping[str, str], spec: Any, biases: PositionBiases):
        self.attention = RecurrentAttention(names, spec, biases)
        self.feed_forward = RecurrentFeedForward(names, spec)

    def __call__(self, hidden: Any, memory: Any, context: LayerContext) -> Any:
        """As RecurrentAttention."""
        return self.feed_forward(self.attention(hidden, memory, context))
