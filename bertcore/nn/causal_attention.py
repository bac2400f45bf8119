"""GPT-2's blocks (Radford et al. 2019): causal self-attention and feed-forward, each behind its layer norm.

The residual goes around the norm: hidden + attention(norm(hidden)), then hidden + feed_forward(norm(hidden)).
"""

from collections.abc import Mapping
from typing import Any

from bertcore.nn import functional
from bertcore.nn.encoder import LayerContext, attention_dtype
from bertcore.nn.layers import Embedding, LayerNorm, Linear
from bertcore.nn.parameter import Block


class WordsAndPositions(Block):
    """word + position, and the word that stands for the token type where a call gives one; no norm."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width = spec.hidden_size
        self.words = Embedding(names["word_embeddings"], rows=spec.vocab_size, features=width)
        self.positions = Embedding(names["position_embeddings"], rows=spec.max_positions, features=width)

    def __call__(self, inputs: Any) -> Any:
        """An `EncoderInput` -> (tokens, hidden)."""
        embedded = functional.add(self.words(inputs.input_ids), self.positions(inputs.position_ids))
        if inputs.token_type_ids is None:
            return embedded
        return functional.add(embedded, self.words(inputs.token_type_ids))


class CausalSelfAttention(Block):
    """Norm, multi-head attention to the token itself and those before it, output map and residual.

    Attributes:
        index: of the layer.
        scale: of the scores; None is 1 / sqrt(head_dim).
    """

    def __init__(self, names: Mapping[str, str], spec: Any):
        width = spec.hidden_size
        self.num_heads, self.index, self.scale = spec.num_heads, 0, None
        self.norm = LayerNorm(names["attention_norm"], features=width, eps=spec.layer_norm_eps)
        self.qkv = Linear(names["qkv"], in_features=width, out_features=3 * width, is_transposed=True)
        self.output = Linear(names["attention_output"], in_features=width, out_features=width, is_transposed=True)

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden); context.shared is the KeyValueCache of a generation, or None."""
        qkv, cache = self.qkv(self.norm(hidden)), context.shared
        options = {"num_heads": self.num_heads, "scale": self.scale, "compute_dtype": attention_dtype(self.qkv.weight)}
        if cache is not None:
            attended = cache.attend(self.index, qkv, **options)
        else:
            where = {"cu_seqlens": context.cu_seqlens, "attn_mask": context.key_mask, "is_causal": True}
            attended = functional.self_attention(qkv, **where, **options, attentions=context.attentions)
        return self.output(attended, residual=hidden)


class PreNormLayer(Block):
    """Causal self-attention, then feed-forward, each with its norm before it."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width, inner = spec.hidden_size, spec.intermediate_size
        sizes = {"in_features": width, "out_features": inner, "is_transposed": True}
        self.attention = CausalSelfAttention(names, spec)
        self.norm = LayerNorm(names["feed_forward_norm"], features=width, eps=spec.layer_norm_eps)
        self.expand = Linear(names["expand"], **sizes, activation=spec.activation)
        self.contract = Linear(names["contract"], in_features=inner, out_features=width, is_transposed=True)

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        hidden = self.attention(hidden, context)
        return self.contract(self.expand(self.norm(hidden)), residual=hidden)
