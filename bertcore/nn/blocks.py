"""The blocks of an encoder: embeddings, layers, and poolers, which read their output.

A layer is attention, then feed-forward, each with its residual and its norm. A family describes its layers by
a LayerSpec, which the blocks here read. Norms come after the residual (Vaswani et al. 2017, section 3.1) or before
attention and feed-forward (Xiong et al. 2020, arXiv:2002.04745).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertcore.kernels import RelativePositions
from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.layers import Embedding, LayerNorm, Linear, drop
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.rotary import RotaryAngles, RotarySpec
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


class Embeddings(Block):
    """LayerNorm(word + token type + position), as in BERT (Devlin et al. 2018, figure 2); a family may lack terms.

    Embeddings narrower than the hidden size are then projected (Lan et al. 2019, arXiv:1909.11942, section 3.1); BERT
    Hash projects word embeddings before the sum.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        width, self.dropout = spec.summed_size, spec.embedding_dropout
        padding = None if spec.padding_learns else spec.pad_token_id
        self.words = Embedding(
            names["word_embeddings"], rows=spec.vocab_size, features=spec.embedding_size, padding_row=padding
        )
        self.positions = self.types = self.projection = None
        if spec.max_positions:
            # RoBERTa gives padding its own position, whose row gets no gradient either.
            padding = spec.pad_token_id if spec.positions_after_padding else None
            name, rows = names["position_embeddings"], spec.max_positions
            self.positions = Embedding(name, rows=rows, features=width, padding_row=padding)
        if spec.type_vocab_size:
            self.types = Embedding(names["type_embeddings"], rows=spec.type_vocab_size, features=width)
        self.types_are_words, self.scale = spec.words_as_types, spec.embedding_scale
        self.norm = None
        if "embeddings_norm" in names:
            sizes = {"features": width, "eps": spec.layer_norm_eps}
            self.norm = LayerNorm(names["embeddings_norm"], **sizes, bias="embeddings_norm" not in spec.without_bias)
        self.projects_words = spec.projects_words
        if width != spec.hidden_size or spec.projects_embeddings or spec.projects_words:
            sizes = {"in_features": spec.embedding_size, "out_features": spec.hidden_size}
            self.projection = Linear(names["embeddings_projection"], **sizes)

    @property
    def can_be_deferred(self) -> bool:
        """True if a program can record them as steps (`execution.eager.Recorded`)."""
        return self.scale == 1 and self.words.table.precision != "float64"

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        """Map an `EncoderInput` to (tokens, hidden)."""
        words, marks = self.words(run, inputs.input_ids), self.marks(run, inputs)
        if self.projects_words:
            words = self.projection(run, words)
        if self.scale != 1:
            words = functional.scale(run, words, factor=self.scale)
        if self.norm is not None:
            embedded = self.norm(run, words, marks)
        else:
            embedded = words if marks is None else functional.add(run, words, marks)
        embedded = drop(run, embedded, self.dropout)
        return embedded if self.projection is None or self.projects_words else self.projection(run, embedded)

    def marks(self, run: Pass, inputs: Any) -> Tensor:
        """Return the sum of token types and positions, (tokens, embedding size), or None."""
        types, ids = None, inputs.token_type_ids
        if ids is not None and (self.types is not None or self.types_are_words):
            types = self.words(run, ids) if self.types is None else self.types(run, ids)
        positions = None if self.positions is None else self.positions(run, inputs.position_ids)
        if types is None or positions is None:
            return positions if types is None else types
        return functional.add(run, types, positions)


class FirstToken(Block):
    """A pooler that returns the hidden state of the first token."""

    def __call__(self, run: Pass, hidden: Tensor, first_tokens: NativeArray) -> Tensor:
        """Map (tokens, hidden) and the packed indices of first tokens to (sequences, hidden)."""
        return functional.take_rows(run, hidden, rows=first_tokens)


class Pooler(Block):
    """tanh(linear(hidden state of the first token)) (Devlin et al. 2018, section 3)."""

    def __init__(self, name: str, spec: EncoderSpec):
        width = spec.hidden_size
        self.dense = Linear(name, in_features=width, out_features=width, activation="tanh")

    def __call__(self, run: Pass, hidden: Tensor, first_tokens: NativeArray) -> Tensor:
        """Map (tokens, hidden) and the packed indices of first tokens to (sequences, hidden)."""
        return self.dense(run, functional.take_rows(run, hidden, rows=first_tokens))


QKV = "query", "key", "value"


@dataclass
class LayerContext:
    """The arrays that the layers of one pass share; families whose layers share more derive from it."""

    cu_seqlens: NativeArray  # int32 offsets of the sequences, (sequences + 1,)
    # which tokens may be attended to, booleans that broadcast to (sequences, heads, longest, longest); None for all
    key_mask: NativeArray | None = None
    relative: RelativePositions | None = None  # those that all layers share
    rotary: dict[RotarySpec, RotaryAngles] = field(default_factory=dict)  # the angles of each spec of the layers

    @property
    def can_be_recorded(self) -> bool:
        """True if a recorded program can be reused for all batches with these offsets."""
        if self.key_mask is not None:
            return False
        return not self.rotary or all(angles.can_be_recorded for angles in self.rotary.values())

    def in_use(self) -> list[Any]:
        """Return all objects in it that the layers read; holding the list keeps them alive."""
        return [self]


def make_norm(names: Mapping[str, str], part: str, spec: LayerSpec, features: int | None = None) -> Block | None:
    """Return the norm of this part of a layer, or None; `features` is the layer's width by default."""
    if part in spec.absent or part not in names:
        return None
    sizes = {"features": features or spec.hidden_size, "eps": spec.norm_eps}
    return spec.norm(names[part], **sizes, bias=part not in spec.without_bias)


def attention_dtype(run: Pass, weight: Parameter) -> str | None:
    """Return attention's compute_dtype for linear maps in the precision of `weight`.

    With int8 maps, attention in float32 would take a third of the time; in bfloat16 its sums and softmax are still
    float32. With int8_weight_only nothing is rounded. Under a tape (of adapters on such maps) attention computes in
    float32, which has gradients.
    """
    forms = weight.forms
    is_rounded = forms.is_low and not forms.is_grouped and run.backend != "cupy"
    return "bfloat16" if is_rounded and run.tape is None else None


def _map(layer: LayerSpec, part: str, *names: str, in_features: int, out_features: int, **how: Any) -> Linear:
    """Return the joined linear map `names` of a layer, with a bias if `part` has one."""
    sizes = {"in_features": in_features, "out_features": out_features}
    return Linear(*names, **sizes, bias=part not in layer.without_bias, is_transposed=layer.is_transposed, **how)


class Sublayer(Block):
    """output(mix(norm(hidden))) + hidden, or norm(output(mix(hidden)) + hidden)."""

    dropout = 0.0  # the rate of its output in training
    norm: Block | None
    output_norm: Block | None = None  # a norm of the result of `output`
    norm_first: bool  # whether the norm comes before `mix`
    output: Linear  # the map back to the layer's width

    def __call__(self, run: Pass, hidden: Tensor, context: LayerContext) -> Tensor:
        """Map (tokens, hidden) to (tokens, hidden)."""
        return self.close(run, self.mix(run, self.open(run, hidden), context), hidden)

    def open(self, run: Pass, hidden: Tensor) -> Tensor:
        """Return the input of `mix`: `hidden`, after the norm if that comes first."""
        return self.norm(run, hidden) if self.norm_first and self.norm is not None else hidden

    def mix(self, run: Pass, source: Tensor, context: LayerContext) -> Tensor:
        """Map (tokens, hidden) to the input of `output`, (tokens, inputs of output)."""
        raise NotImplementedError

    def close(self, run: Pass, mixed: Tensor, residual: Tensor) -> Tensor:
        """Map `mixed` to the layer's width and add the residual; then apply the norm if that comes last."""
        if isinstance(self.norm, LayerNorm) and not self.norm_first and self.dropout and run.seeds:
            return self.norm(run, self.output(run, mixed), residual, dropout=self.dropout)
        if self.output_norm is None:
            total = self.output(run, mixed, residual=residual, dropout=self.dropout)
        else:
            mapped = self.output_norm(run, self.output(run, mixed))
            total = functional.add(run, drop(run, mapped, self.dropout), residual)
        return total if self.norm_first or self.norm is None else self.norm(run, total)


class SelfAttention(Sublayer):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), of the layer of this index, counted from 0."""

    position_terms = 0  # the number of relative-position products in the scores, in addition to query times key
    projections: list[Linear]  # the maps whose concatenated outputs are query, key and value

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        layer = self.spec = spec.layers[index]
        self.index, self.norm_first, self.dropout = index, layer.norm_first, layer.dropout
        if layer.attention_output_dropout is not None:
            self.dropout = layer.attention_output_dropout
        self.projections = self._make_projections(names, layer)
        sizes = {"in_features": layer.attention_size, "out_features": layer.hidden_size}
        self.output = _map(layer, "attention_output", names["attention_output"], **sizes)
        self.norm = make_norm(names, "attention_norm", layer)
        self.output_norm = make_norm(names, "attention_output_norm", layer)
        width = layer.query_norm_size or layer.head_size
        self.query_norm, self.key_norm = (make_norm(names, part, layer, width) for part in ("query_norm", "key_norm"))

    def _make_projections(self, names: Mapping[str, str], layer: LayerSpec) -> list[Linear]:
        queries, keys = layer.attention_size, layer.key_value_size
        by_head = None
        if layer.qkv_by_head:
            split = (layer.num_heads, 3, layer.head_size, layer.hidden_size)
            by_head = Layout((3 * queries, layer.hidden_size), axes=(1, 0, 2, 3), row_axes=3, split=split)

        def projection(*parts: str, width: int) -> Linear:
            sizes = {"in_features": layer.hidden_size, "out_features": width}
            return _map(layer, parts[0], *(names[part] for part in parts), **sizes, layout=by_head)

        if "qkv" in names:
            return [projection("qkv", width=queries + 2 * keys)]
        if "query_norm" in names:
            return [projection(part, width=width) for part, width in zip(QKV, (queries, keys, keys), strict=True)]
        if queries == keys:
            return [projection("query", "key", "value", width=queries)]
        return [projection("query", width=queries), projection("key", "value", width=keys)]

    def mix(self, run: Pass, source: Tensor, context: LayerContext) -> Tensor:
        """Return the attended values of all heads, concatenated, (tokens, heads * head_dim)."""
        projected = [project(run, source) for project in self.projections]
        if self.query_norm is not None:
            query, key, value = projected
            projected = [self._normed(run, self.query_norm, query), self._normed(run, self.key_norm, key), value]
        return self.attend(run, projected, context)

    def _normed(self, run: Pass, norm: Block, array: Tensor) -> Tensor:
        """Return queries or keys, (tokens, heads * head_dim), normalised over groups of `query_norm_size` columns."""
        width = self.spec.query_norm_size or self.spec.head_size
        normed = norm(run, functional.reshape(run, array, shape=(-1, width)))
        return functional.reshape(run, normed, shape=(-1, value_of(array).shape[1]))

    def attend(self, run: Pass, projected: list[Tensor], context: LayerContext) -> Tensor:
        """Return attention of query, key and value, concatenated in the arrays `projected`, (tokens, ...) each."""
        layer, options = self.spec, {"num_heads": self.spec.num_heads, "scale": self.spec.scale}
        options["compute_dtype"] = attention_dtype(run, self.projections[0].weight)
        if run.cache is not None:
            return run.cache.attend(run, self.index, *projected, **options)
        if layer.rotary is not None:
            projected = self._rotated(run, projected, context)
        if run.trace.projections is not None:
            run.trace.projections.append(self._separated(run, projected))
        return functional.self_attention(
            run,
            *projected,
            **options,
            num_key_value_heads=layer.num_key_value_heads,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            dropout=layer.attention_dropout,
            is_causal=layer.is_causal,
            window=layer.window,
            relative=context.relative,
        )

    def _separated(self, run: Pass, projected: list[Any]) -> tuple[Any, ...]:
        """Return (query, key, value) from the arrays in which they are concatenated."""
        widths = [self.spec.attention_size, self.spec.key_value_size, self.spec.key_value_size]
        parts: list[Any] = []
        for array in projected:
            left, some = value_of(array).shape[1], []
            while left:
                some.append(widths[len(parts) + len(some)])
                left -= some[-1]
            parts += functional.split_columns(run, array, widths=some)
        return tuple(parts)

    def _rotated(self, run: Pass, projected: list[Any], context: LayerContext) -> list[Any]:
        """Return `projected` with queries and keys rotated by their position."""
        layer, angles = self.spec, context.rotary[self.spec.rotary]
        where = {"cos": angles.cos, "sin": angles.sin, "interleaved": layer.rotary.interleaved}
        where |= {"cu_seqlens": context.cu_seqlens} if angles.positions is None else {"positions": angles.positions}
        queries, keys = layer.num_heads, layer.num_key_value_heads or layer.num_heads
        counts = [queries + keys] if len(projected) == 1 else [queries, keys]
        turned = [
            functional.rotary(run, array, heads=heads, head_dim=layer.head_size, **where)
            for array, heads in zip(projected, counts, strict=False)
        ]
        return turned + projected[2:]  # values may be in an array of their own


class FeedForward(Sublayer):
    """Two linear maps with an activation, or a gated one, between them (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, names: Mapping[str, str], layer: LayerSpec):
        self.norm_first, self.activation, self.gate = layer.norm_first, layer.activation, layer.gate
        self.dropout, self.inner_dropout = layer.dropout, layer.inner_dropout
        if layer.gate is None:
            parts = (names.get("plain_expand", names["expand"]),)
        elif "gate" in names:
            parts = names["gate"], names["expand"]
            parts = parts if layer.gate == "first" else parts[::-1]
        else:
            parts = (names["expand"],)
        width, inner = layer.hidden_size, layer.intermediate_size
        both = inner if layer.gate is None or len(parts) == 2 else 2 * inner
        activation = layer.activation if layer.gate is None else None
        self.expand = _map(layer, "expand", *parts, in_features=width, out_features=both, activation=activation)
        self.output = _map(layer, "contract", names["contract"], in_features=inner, out_features=width)
        self.norm = make_norm(names, "feed_forward_norm", layer)
        self.output_norm = make_norm(names, "feed_forward_output_norm", layer)

    def mix(self, run: Pass, source: Tensor, context: LayerContext | None = None) -> Tensor:
        """Map (tokens, hidden) to (tokens, intermediate)."""
        expanded = self.expand(run, source)
        if self.gate is not None:
            expanded = functional.gated_activation(run, expanded, activation=self.activation, gate=self.gate)
        return drop(run, expanded, self.inner_dropout)


class EncoderLayer(Block):
    """Self-attention, then feed-forward.

    `attention` is the class of the attention block; a family's own is constructed and called like SelfAttention.
    """

    reads_on_host = False  # whether the host reads its results, so that a CUDA graph cannot capture it

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block] = SelfAttention):
        self.attention = attention(names, spec, index)
        self.feed_forward = FeedForward(names, spec.layers[index])

    def __call__(self, run: Pass, hidden: Tensor, context: LayerContext) -> Tensor:
        """Map (tokens, hidden) to (tokens, hidden)."""
        return self.feed_forward(run, self.attention(run, hidden, context), context)
