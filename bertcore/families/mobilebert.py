"""MobileBERT (Sun et al. 2020, arXiv:2004.02984): a thin and deep BERT with a bottleneck in each layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertcore.families.bert import BERT
from bertcore.models.registry import HeadSpec, register
from bertcore.models.spec import MOST_LAYERS, ConfigReader, standard_spec
from bertcore.nn import functional
from bertcore.nn.blocks import Embeddings, FeedForward, FirstToken, LayerContext, Pooler, SelfAttention
from bertcore.nn.layers import LayerNorm, Linear, drop
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

# For layer norms in which the published code uses PyTorch's epsilon, not the config's.
DEFAULT_EPS = 1e-5


@dataclass(frozen=True)
class BottleneckDetails:
    """Settings of MobileBERT's bottlenecks."""

    hidden_size: int  # the width of the hidden states; a LayerSpec's hidden_size is the width within a layer
    has_bottleneck: bool  # whether layers are narrower within than hidden_size
    attends_in_bottleneck: bool  # whether query, key and value are all computed from the output of one bottleneck
    shares_query_key: bool  # whether query and key share a bottleneck
    num_feed_forwards: int  # the number of feed-forwards in each layer
    has_trigrams: bool  # whether a word's embedding includes its neighbours'
    has_pooler_map: bool  # whether the pooler has a linear map and tanh, or returns the first token's state

    @property
    def has_own_values(self) -> bool:
        """True if query and key come from their own bottleneck, and the value from the whole hidden state."""
        return self.has_bottleneck and self.shares_query_key and not self.attends_in_bottleneck


class NoNorm(Block):
    """An elementwise affine map, (input + residual) * weight + bias, in place of a layer norm (section 3.3).

    `eps` is not used. Raises ValueError without a bias.
    """

    def __init__(self, name: str, *, features: int, eps: float, bias: bool = True):
        if not bias:
            raise ValueError(f"{name} has bias {bias}, expected True: MobileBERT's norms have one")
        self.weight = Parameter(f"{name}.weight", shape=(features,), initial="ones")
        self.bias = Parameter(f"{name}.bias", shape=(features,), initial="zeros")

    def __call__(self, run: Pass, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, features) to (tokens, features)."""
        return functional.affine(run, input, self.weight.value(run), self.bias.value(run), residual)


class TrigramEmbeddings(Embeddings):
    """Norm(projection(words) + token type + position); each word is concatenated with the next and the previous one.

    Zeros stand for the neighbours beyond a sequence's ends. (transformers uses the padding embedding if padding
    follows, so results change with padding unless that embedding is zero, as in a new model.)
    """

    can_be_deferred = False

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, replace(spec, projects_words=True))
        width, self.is_trigram = spec.hidden_size, spec.details.has_trigrams
        inputs = 3 * spec.embedding_size if self.is_trigram else spec.embedding_size
        self.projection = Linear(names["embeddings_projection"], in_features=inputs, out_features=width)
        self.is_projected = inputs != width or self.is_trigram
        self.norm = spec.layers[0].norm(names["embeddings_norm"], features=width, eps=DEFAULT_EPS)

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        words, marks = self.words(run, inputs.input_ids), self.marks(run, inputs)
        if self.is_trigram:
            words = functional.take_neighbours(run, words, cu_seqlens=inputs.cu_seqlens, distances=(1, 0, -1))
        return drop(
            run, self.norm(run, self.projection(run, words) if self.is_projected else words, marks), self.dropout
        )


class Projection(Block):
    """A linear map, an optional residual, and a norm: into a bottleneck, or out of it."""

    def __init__(self, name: str, layer: LayerSpec, in_features: int, out_features: int, dropout: float = 0.0):
        self.dropout = dropout
        self.map = Linear(f"{name}.dense", in_features=in_features, out_features=out_features)
        self.norm = layer.norm(f"{name}.LayerNorm", features=out_features, eps=layer.norm_eps)

    def __call__(self, run: Pass, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, in_features) to (tokens, out_features)."""
        return self.norm(run, drop(run, self.map(run, input), self.dropout), residual)


class BottleneckAttention(SelfAttention):
    """Self-attention whose value may come from another array than query and key (`has_own_values`)."""

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
        self, run: Pass, query_key_source: Tensor, value_source: Tensor, residual: Tensor, context: LayerContext
    ) -> Tensor:
        """Return attention, (tokens, width), from the source of queries and keys and the source of values."""
        sources = (query_key_source, value_source)[: len(self.projections)]
        projected = [project(run, source) for project, source in zip(self.projections, sources, strict=True)]
        return self.close(run, self.attend(run, projected, context), residual)


class BottleneckLayer(Block):
    """A projection into the bottleneck, self-attention, feed-forwards, and a projection out of it (section 3.1)."""

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

    def __call__(self, run: Pass, hidden: Tensor, context: LayerContext) -> Tensor:
        """Map (tokens, hidden) to (tokens, hidden)."""
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


DEFAULTS = {
    "hidden_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 512,
    "hidden_act": "relu", "hidden_dropout_prob": 0.0,
}  # fmt: skip


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a MobileBERT config; absent keys have mobilebert-uncased's values."""
    read = ConfigReader(config)
    hidden, heads = read.size("hidden_size", 512), read.size("num_attention_heads", 4)
    layers = read.size("num_hidden_layers", 24, most=MOST_LAYERS)
    details = BottleneckDetails(
        hidden_size=hidden,
        has_bottleneck=read.flag("use_bottleneck", True),
        attends_in_bottleneck=read.flag("use_bottleneck_attention", False),
        shares_query_key=read.flag("key_query_shared_bottleneck", True),
        num_feed_forwards=read.size("num_feedforward_networks", 4, most=MOST_LAYERS // layers),
        has_trigrams=read.flag("trigram_input", True),
        has_pooler_map=read.flag("classifier_activation", True),
    )
    narrow = read.size("intra_bottleneck_size", 128) if details.has_bottleneck else hidden
    embedding_size = read.size("embedding_size", 128)
    if details.has_bottleneck and narrow != hidden and not (details.attends_in_bottleneck or details.shares_query_key):
        raise ValueError(f"config: intra_bottleneck_size is {narrow}, expected {hidden} without shared bottlenecks")
    if embedding_size > hidden:
        raise ValueError(f"config: embedding_size is {embedding_size}, expected at most hidden_size {hidden}")
    if narrow % heads:
        key = "intra_bottleneck_size" if details.has_bottleneck else "hidden_size"
        raise ValueError(f"config: {key} is {narrow}, expected a multiple of num_attention_heads {heads}")
    norm = read.choice("normalization_type", "no_norm", "no_norm", "layer_norm")
    return standard_spec(
        config,
        keys={"bottleneck_size": "intra_bottleneck_size"},
        num_layers=layers,
        type_vocab_size=read.size("type_vocab_size", 2),
        embedding_size=embedding_size,
        layer={
            "hidden_size": narrow,
            "norm": NoNorm if norm == "no_norm" else LayerNorm,
            "attention_output_dropout": 0.0 if details.has_bottleneck else None,
        },
        is_relative=details.has_trigrams,
        details=details,
        defaults=DEFAULTS,
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return BERT's heads for a MobileBERT config, whose embeddings are narrower than the transform."""
    found = BERT.heads(read)
    activation = read.activation("hidden_act", "relu")
    return found | {"masked_lm": replace(found["masked_lm"], activation=activation, rest="cls.predictions.dense")}


def pooler(name: str, spec: EncoderSpec) -> Block:
    """Return the pooler of the base model."""
    return Pooler(name, spec) if spec.details.has_pooler_map else FirstToken()


MOBILEBERT = register(
    replace(
        BERT,
        model_type="mobilebert",
        architecture="MobileBert",
        spec_from_config=spec,
        heads=heads,
        name_rules=replace(BERT.name_rules, prefix="mobilebert."),
        encoder_names=BERT.encoder_names | {"embeddings_projection": "embeddings.embedding_transformation"},
        layer_names=BERT.layer_names
        | {
            "into": "encoder.layer.{layer}.bottleneck.input",
            "into_attention": "encoder.layer.{layer}.bottleneck.attention",
            "stacked": "encoder.layer.{layer}.ffn.{{index}}",
            "out": "encoder.layer.{layer}.output.bottleneck",
        },
        embeddings=TrigramEmbeddings,
        attention=BottleneckAttention,
        layer=BottleneckLayer,
        pooler=pooler,
    )
)
