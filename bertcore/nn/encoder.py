"""The transformer encoder: self-attention and feed-forward, each followed by its residual and layer norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.nn import functional
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter


@dataclass
class LayerContext:
    """What the layers of one pass share.

    Attributes:
        cu_seqlens: int32 offsets of the sequences, (sequences + 1,).
        key_mask: which tokens may be seen, booleans that broadcast to (sequences, heads, longest, longest); None where
            all may.
        attentions: a list to which each layer appends its probabilities, or None.
        shared: what the family's encoder prepared for all layers, or None: DeBERTa's RelativePositions, LUKE's
            TokenRows, XLNet's Relations, the KeyValueCache of a generation.
    """

    cu_seqlens: Any
    key_mask: Any = None
    attentions: list | None = None
    shared: Any = None


def attention_dtype(weight: Parameter) -> str | None:
    """The compute_dtype of attention beside maps of the precision of `weight`.

    Beside int8 maps float32 attention would take a third of the time; its sums and softmax are float32 still.
    """
    return "bfloat16" if weight.is_low_on_cpu else None


class SelfAttention(Block):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with its output map, residual and norm."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width = spec.hidden_size
        self.num_heads = spec.num_heads
        self.qkv = self._make_qkv(names, width)
        self.output = Linear(names["attention_output"], in_features=width, out_features=width)
        self.norm = LayerNorm(names["attention_norm"], features=width, eps=spec.layer_norm_eps)

    def _make_qkv(self, names: Mapping[str, str], width: int) -> Linear:
        projections = (names["query"], names["key"], names["value"])
        return Linear(*projections, in_features=width, out_features=width)

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        attended = self._attend(hidden, context, attention_dtype(self.qkv.weight))
        return self.norm(self.output(attended, residual=hidden))

    def _attend(self, hidden: Any, context: LayerContext, compute_dtype: str | None) -> Any:
        """The attended values of all heads side by side, (tokens, hidden)."""
        return functional.self_attention(
            self.qkv(hidden),
            num_heads=self.num_heads,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            attentions=context.attentions,
            compute_dtype=compute_dtype,
        )


class FeedForward(Block):
    """Two linear maps with an activation between (Vaswani et al. 2017, section 3.3), residual and norm."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width, inner = spec.hidden_size, spec.intermediate_size
        self.expand = Linear(names["expand"], in_features=width, out_features=inner, activation=spec.activation)
        self.contract = Linear(names["contract"], in_features=inner, out_features=width)
        self.norm = LayerNorm(names["feed_forward_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, hidden: Any) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        return self.norm(self.contract(self.expand(hidden), residual=hidden))


class EncoderLayer(Block):
    """Self-attention, then feed-forward.

    `attention` is the block of the former, which a family may have of its own; it is called as SelfAttention is.
    """

    def __init__(self, names: Mapping[str, str], spec: Any, attention: type[Block] = SelfAttention):
        self.attention = attention(names, spec)
        self.feed_forward = FeedForward(names, spec)

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        return self.feed_forward(self.attention(hidden, context))
