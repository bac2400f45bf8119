"""MobileBERT's blocks (Sun et al. 2020, arXiv:2004.02984).

Layers that are narrow within, several feed-forwards in each, norms without statistics, and embeddings of three
neighbouring words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.nn import functional
from bertcore.nn.embeddings import Embeddings
from bertcore.nn.encoder import LayerContext, attention_dtype
from bertcore.nn.layers import Embedding, LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter

# Of layer norms that the published code gives no epsilon of the config's, but PyTorch's own.
DEFAULT_EPS = 1e-5


@dataclass(frozen=True)
class BottleneckDetails:
    """What MobileBERT's configs vary.

    Attributes:
        has_bottleneck: whether layers are narrower within than hidden_size.
        attends_in_bottleneck: whether query, key and value are all made of what comes out of one bottleneck.
        shares_query_key: whether there is a bottleneck of query and key.
        num_feed_forwards: in each layer.
        has_layer_norms: layer norms, or weights and biases alone in their place.
        has_trigrams: whether a word's embedding is that of its neighbours, too.
        has_pooler_map: whether the pooler has a map and tanh, or gives the first token as it is.
    """

    has_bottleneck: bool
    attends_in_bottleneck: bool
    shares_query_key: bool
    num_feed_forwards: int
    has_layer_norms: bool
    has_trigrams: bool
    has_pooler_map: bool

    @property
    def has_own_values(self) -> bool:
        """Whether query and key are made of their own bottleneck, the value of the whole hidden state."""
        return self.has_bottleneck and self.shares_query_key and not self.attends_in_bottleneck


class NoNorm(Block):
    """(input + residual) * weight + bias, which stands where other models have a layer norm (section 3.3)."""

    def __init__(self, name: str, *, features: int, eps: float):
        self.weight = Parameter(f"{name}.weight", shape=(features,), initial="ones")
        self.bias = Parameter(f"{name}.bias", shape=(features,), initial="zeros")

    def __call__(self, input: Any, residual: Any = None) -> Any:
        """(tokens, features) -> (tokens, features)."""
        return functional.affine(input, self.weight.value, self.bias.value, residual)


def norm(name: str, spec: Any, features: int, eps: float | None = None) -> Block:
    """The norm that the config chooses; `eps` is the config's by default."""
    kind = LayerNorm if spec.details.has_layer_norms else NoNorm
    return kind(name, features=features, eps=spec.layer_norm_eps if eps is None else eps)


class TrigramEmbeddings(Embeddings):
    """Norm(projection(words) + token type + position), where each word stands between those after and before it.

    What stands beyond the ends of a sequence is zero. (In transformers the padding that follows a sequence in its batch
    stands there, so that results change with it unless the embedding of padding is zero, as it is in a new model.)
    """

    def __init__(self, names: Mapping[str, str], spec: Any):
        width, narrow, self.is_trigram = spec.hidden_size, spec.embedding_size, spec.details.has_trigrams
        sizes = {"rows": spec.vocab_size, "features": narrow}
        self.words = Embedding(names["word_embeddings"], **sizes, padding_row=spec.pad_token_id)
        self.positions = Embedding(names["position_embeddings"], rows=spec.max_positions, features=width)
        self.types = Embedding(names["type_embeddings"], rows=spec.type_vocab_size, features=width)
        inputs = 3 * narrow if self.is_trigram else narrow
        self.projection = Linear(names["embeddings_projection"], in_features=inputs, out_features=width)
        self.is_projected = inputs != width or self.is_trigram
        self.norm = norm(names["embeddings_norm"], spec, width, eps=DEFAULT_EPS)

    def __call__(self, inputs: Any) -> Any:
        """An `EncoderInput` -> (tokens, hidden)."""
        words, marks = self.words(inputs.input_ids), self.marks(inputs)
        if self.is_trigram:
            words = functional.take_neighbours(words, cu_seqlens=inputs.cu_seqlens, distances=(1, 0, -1))
        return self.norm(self.projection(words) if self.is_projected else words, marks)


class NarrowFeedForward(Block):
    """Two linear maps with an activation between, residual and norm."""

    def __init__(self, expand: str, contract: str, norm_name: str, spec: Any, eps: float | None = None):
        width, inner = spec.bottleneck_size, spec.intermediate_size
        self.expand = Linear(expand, in_features=width, out_features=inner, activation=spec.activation)
        self.contract = Linear(contract, in_features=inner, out_features=width)
        self.norm = norm(norm_name, spec, width, eps)

    def __call__(self, hidden: Any) -> Any:
        """(tokens, width) -> (tokens, width)."""
        return self.norm(self.contract(self.expand(hidden)), hidden)


class Projection(Block):
    """A linear map, a residual if there is one, and a norm: into a bottleneck, or out of it."""

    def __init__(self, name: str, spec: Any, in_features: int, out_features: int):
        self.map = Linear(f"{name}.dense", in_features=in_features, out_features=out_features)
        self.norm = norm(f"{name}.LayerNorm", spec, out_features)

    def __call__(self, input: Any, residual: Any = None) -> Any:
        """(tokens, in_features) -> (tokens, out_features)."""
        return self.norm(self.map(input), residual)


class BottleneckAttention(Block):
    """Self-attention in the bottleneck, with its output map, residual and norm.

    Query and key come from one array and the value from another, or all three from one (`has_own_values`).
    """

    def __init__(self, names: Mapping[str, str], spec: Any):
        width, details = spec.bottleneck_size, spec.details
        self.num_heads, self.has_own_values = spec.num_heads, details.has_own_values
        query, key, value = names["query"], names["key"], names["value"]
        if self.has_own_values:
            query_key = Linear(query, key, in_features=width, out_features=width)
            self.maps = [query_key, Linear(value, in_features=spec.hidden_size, out_features=width)]
        else:
            self.maps = [Linear(query, key, value, in_features=width, out_features=width)]
        self.output = Projection(names["attention_output"], spec, width, width)

    def __call__(self, asking: Any, answering: Any, residual: Any, context: LayerContext) -> Any:
        """What queries and keys, and what values are made of, (tokens, ...) both, and the residual (tokens, width)
        -> (tokens, width)."""
        sources = (asking, answering) if self.has_own_values else (asking,)
        attended = functional.self_attention(
            *(linear(source) for linear, source in zip(self.maps, sources, strict=True)),
            num_heads=self.num_heads,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            attentions=context.attentions,
            compute_dtype=attention_dtype(self.maps[0].weight),
        )
        return self.output(attended, residual)


class BottleneckLayer(Block):
    """Into the bottleneck, self-attention, the feed-forwards, and out of it again (section 3.1)."""

    def __init__(self, names: Mapping[str, str], spec: Any, attention: type[Block]):
        width, narrow, details = spec.hidden_size, spec.bottleneck_size, spec.details
        self.details = details
        self.attention = attention(names, spec)
        stacked = [names["stacked"].format(index=index) for index in range(details.num_feed_forwards - 1)]
        parts = [(f"{name}.intermediate.dense", f"{name}.output.dense", f"{name}.output.LayerNorm") for name in stacked]
        self.feed_forwards = [NarrowFeedForward(*part, spec) for part in parts]
        last = names["expand"], names["contract"], names["feed_forward_norm"]
        self.feed_forwards.append(NarrowFeedForward(*last, spec, eps=DEFAULT_EPS))
        self.into = self.into_attention = self.out = None
        if details.has_bottleneck:
            self.into = Projection(names["into"], spec, width, narrow)
            if details.shares_query_key:
                self.into_attention = Projection(names["into_attention"], spec, width, narrow)
            self.out = Projection(names["out"], spec, narrow, width)

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        details = self.details
        state = hidden if self.into is None else self.into(hidden)
        if details.has_own_values:
            state = self.attention(self.into_attention(hidden), hidden, state, context)
        else:
            source = state if details.attends_in_bottleneck else hidden
            state = self.attention(source, source, state, context)
        for feed_forward in self.feed_forwards:
            state = feed_forward(state)
        return state if self.out is None else self.out(state, hidden)
