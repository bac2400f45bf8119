"""MobileBERT's blocks (Sun et al. 2020, arXiv:2004.02984).

Layers that are narrower inside, with several feed-forwards each, norms without statistics, and embeddings of three
neighbouring words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertcore.execution import Pass
from bertcore.nn import functional
from bertcore.nn.embeddings import Embeddings
from bertcore.nn.encoder_layer import FeedForward, LayerContext, SelfAttention
from bertcore.nn.layers import Embedding, Linear, drop
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec, LayerSpec

# Of layer norms for which the published code takes PyTorch's epsilon, not the config's.
DEFAULT_EPS = 1e-5


@dataclass(frozen=True)
class BottleneckDetails:
    """What MobileBERT's configs vary.

    Attributes:
        hidden_size: the width of the hidden states; that of a LayerSpec is the width within a layer.
        has_bottleneck: whether layers are narrower within than hidden_size.
        attends_in_bottleneck: whether query, key and value are all made from the output of one bottleneck.
        shares_query_key: whether there is a bottleneck of query and key.
        num_feed_forwards: in each layer.
        has_trigrams: whether a word's embedding includes its neighbours'.
        has_pooler_map: whether the pooler has a map and tanh, or gives the first token as it is.
    """

    hidden_size: int
    has_bottleneck: bool
    attends_in_bottleneck: bool
    shares_query_key: bool
    num_feed_forwards: int
    has_trigrams: bool
    has_pooler_map: bool

    @property
    def has_own_values(self) -> bool:
        """Whether query and key come from a bottleneck of their own, and the value from the whole hidden state."""
        return self.has_bottleneck and self.shares_query_key and not self.attends_in_bottleneck


class NoNorm(Block):
    """(input + residual) * weight + bias, in place of the layer norm of other models (section 3.3); it needs no eps.

    Raises ValueError without a bias."""

    def __init__(self, name: str, *, features: int, eps: float, bias: bool = True):
        if not bias:
            raise ValueError(f"{name} has bias {bias}, expected True: MobileBERT's norms have one")
        self.weight = Parameter(f"{name}.weight", shape=(features,), initial="ones")
        self.bias = Parameter(f"{name}.bias", shape=(features,), initial="zeros")

    def __call__(self, run: Pass, input: Any, residual: Any = None) -> Any:
        """(tokens, features) -> (tokens, features)."""
        return functional.affine(run, input, self.weight.value(run), self.bias.value(run), residual)


class TrigramEmbeddings(Embeddings):
    """Norm(projection(words) + token type + position); each word is joined by the next and the previous one.

    Beyond the ends of a sequence are zeros. (In transformers that is the embedding of padding if any follows, so that
    results change with padding unless its embedding is zero, as in a new model.)
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        width, narrow, self.is_trigram = spec.hidden_size, spec.embedding_size, spec.details.has_trigrams
        sizes = {"rows": spec.vocab_size, "features": narrow}
        self.words = Embedding(names["word_embeddings"], **sizes, padding_row=spec.pad_token_id)
        self.positions = Embedding(names["position_embeddings"], rows=spec.max_positions, features=width)
        self.types = Embedding(names["type_embeddings"], rows=spec.type_vocab_size, features=width)
        inputs = 3 * narrow if self.is_trigram else narrow
        self.projection = Linear(names["embeddings_projection"], in_features=inputs, out_features=width)
        self.is_projected = inputs != width or self.is_trigram
        self.norm = spec.layers[0].norm(names["embeddings_norm"], features=width, eps=DEFAULT_EPS)
        self.dropout = spec.embedding_dropout

    def __call__(self, run: Pass, inputs: Any) -> Any:
        """An `EncoderInput` -> (tokens, hidden)."""
        words, marks = self.words(run, inputs.input_ids), self.marks(run, inputs)
        if self.is_trigram:
            words = functional.take_neighbours(run, words, cu_seqlens=inputs.cu_seqlens, distances=(1, 0, -1))
        return drop(
            run, self.norm(run, self.projection(run, words) if self.is_projected else words, marks), self.dropout
        )


class Projection(Block):
    """A linear map, a residual if there is one, and a norm: into a bottleneck, or out of it."""

    def __init__(self, name: str, layer: LayerSpec, in_features: int, out_features: int, dropout: float = 0.0):
        self.dropout = dropout
        self.map = Linear(f"{name}.dense", in_features=in_features, out_features=out_features)
        self.norm = layer.norm(f"{name}.LayerNorm", features=out_features, eps=layer.norm_eps)

    def __call__(self, run: Pass, input: Any, residual: Any = None) -> Any:
        """(tokens, in_features) -> (tokens, out_features)."""
        return self.norm(run, drop(run, self.map(run, input), self.dropout), residual)


class BottleneckAttention(SelfAttention):
    """Self-attention whose query and key come from one array, and whose value comes from another (`has_own_values`)."""

    def _make_projections(self, names: Mapping[str, str], layer: LayerSpec) -> list[Linear]:
        if not self.details.has_own_values:
            return super()._make_projections(names, layer)
        width = layer.hidden_size
        query_key = Linear(names["query"], names["key"], in_features=width, out_features=width)
        return [query_key, Linear(names["value"], in_features=self.details.hidden_size, out_features=width)]

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        self.details = spec.details
        super().__init__(names, spec, index)

    def from_sources(
        self, run: Pass, query_key_source: Any, value_source: Any, residual: Any, context: LayerContext
    ) -> Any:
        """What queries and keys, and what values are made of, (tokens, ...) both, and the residual (tokens, width)
        -> (tokens, width)."""
        sources = (query_key_source, value_source)[: len(self.projections)]
        projected = [project(run, source) for project, source in zip(self.projections, sources, strict=True)]
        return self.close(run, self.attend(run, projected, context), residual)


class BottleneckLayer(Block):
    """A map into the bottleneck, self-attention, feed-forwards, and a map out of it (section 3.1)."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block]):
        details, layer = spec.details, spec.layers[index]
        self.details, width, narrow = details, spec.hidden_size, layer.hidden_size
        self.attention = attention(names, spec, index)
        dropped_within = 0.0 if details.has_bottleneck else layer.dropout
        stacked = [names["stacked"].format(index=place) for place in range(details.num_feed_forwards - 1)]
        parts = {"expand": "intermediate.dense", "contract": "output.dense", "feed_forward_norm": "output.LayerNorm"}
        self.feed_forwards = [
            FeedForward({part: f"{name}.{end}" for part, end in parts.items()}, replace(layer, dropout=0.0))
            for name in stacked
        ]
        self.feed_forwards.append(FeedForward(names, replace(layer, norm_eps=DEFAULT_EPS, dropout=dropped_within)))
        self.into = self.into_attention = self.out = None
        if details.has_bottleneck:
            self.into = Projection(names["into"], layer, width, narrow)
            if details.shares_query_key:
                self.into_attention = Projection(names["into_attention"], layer, width, narrow)
            self.out = Projection(names["out"], layer, narrow, width, layer.dropout)

    def __call__(self, run: Pass, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        details = self.details
        state = hidden if self.into is None else self.into(run, hidden)
        if details.has_own_values:
            state = self.attention.from_sources(run, self.into_attention(run, hidden), hidden, state, context)
        else:
            source = state if details.attends_in_bottleneck else hidden
            state = self.attention.from_sources(run, source, source, state, context)
        for feed_forward in self.feed_forwards:
            state = feed_forward(run, state, context)
        return state if self.out is None else self.out(run, state, hidden)
