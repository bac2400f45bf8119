"""DeBERTa's disentangled attention, by content and by relative position (He et al. 2021, arXiv:2006.03654)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.blocks import Embeddings, LayerContext, SelfAttention, attention_dtype
from bertcore.nn.functional.rows import widened
from bertcore.nn.layers import LayerNorm, Linear, drop
from bertcore.nn.operation import operation
from bertcore.nn.packing import FEWEST_TOKENS, capacity_for
from bertcore.nn.parameter import Block, Parameter, PerVersion
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@operation()
def spread_rows(run: Pass, array: Tensor, *, rows: NativeArray, count: int) -> Tensor:
    """Return `count` rows: the rows of `array` at the distinct indices `rows`, and zeros elsewhere."""
    spread = kernels.array_module(array).zeros((count, array.shape[1]), array.dtype)
    spread[rows] = array
    return spread, lambda grad: (grad[rows],)


def padding_of_sequences(is_real: np.ndarray, cu_seqlens: np.ndarray) -> list[tuple[slice, np.ndarray]]:
    """Return (tokens, indices of padding among them) for each sequence with padding, in host memory."""
    spans = [slice(first, end) for first, end in functional.sequence_spans(cu_seqlens)]
    return [(span, np.flatnonzero(~is_real[span])) for span in spans if not is_real[span].all()]


@operation()
def mean_value_for_padding(
    run: Pass, attended: Tensor, qkv: Tensor, *, num_heads: int, padding: Sequence[tuple[slice, np.ndarray]]
) -> Tensor:
    """Return `attended`, (tokens, hidden), with the mean value vector of its sequence at each token of `padding`.

    See `padding_of_sequences`. As in transformers, all scores of a padding token are equal. `qkv` (one array)
    and `num_heads` are as for `self_attention`.
    """
    output = attended.copy()
    value = functional.split_heads(qkv, num_heads=num_heads)[2]
    for span, rows in padding:
        output[span][rows] = value[span].mean(axis=0).reshape(-1)

    def pullback(grad):
        grad_qkv = kernels.array_module(grad).zeros(qkv.shape, grad.dtype)
        grad_attended, grad_value = grad.copy(), functional.split_heads(grad_qkv, num_heads=num_heads)[2]
        for span, rows in padding:
            count = span.stop - span.start
            grad_value[span] += grad[span][rows].sum(axis=0).reshape(num_heads, -1) / count
            grad_attended[span][rows] = 0
        return grad_attended, grad_qkv

    return output, pullback


@dataclass(frozen=True)
class Disentanglement:
    """Settings of DeBERTa's disentangled attention and embeddings."""

    # whether each of these scores is added to the content-to-content score
    content_to_position: bool
    position_to_content: bool
    score_terms: int  # the scores are divided by sqrt(score_terms * head_dim)
    max_distance: int  # larger distances count as this one; 0 without relative positions
    # the number of embeddings for the distances of one sign: half of them are for single distances, the others for
    # ranges that grow with the distance; 0 for an embedding per distance up to max_distance
    buckets: int = 0
    shares_maps: bool = False  # relative positions use the layer's query and key projections of content
    has_norm: bool = False  # the relative embeddings are normalised
    convolution: Any = None  # DeBERTa v2's convolution parallel to the first layer, a `ConvolutionSpec`, or None

    @property
    def span(self) -> int:
        """Half the number of relative embeddings."""
        return self.buckets or self.max_distance


def distance_rows(details: Disentanglement) -> np.ndarray:
    """Return the relative embedding's row for each ascending distance up to where rows stop changing, int32."""
    furthest, span = details.max_distance, details.span
    if details.buckets:
        middle = span // 2
        if furthest > middle + 1:  # the distance of the last bucket; odd spans have one more
            furthest = int(middle * ((furthest - 1) / middle) ** ((span - middle - 1) / max(middle - 1, 1))) + 2
        else:
            furthest = middle
        places = _log_buckets(np.arange(-furthest, furthest + 1), middle, details.max_distance)
    else:
        places = np.arange(-furthest, furthest + 1)
    return np.clip(places + span, 0, 2 * span - 1).astype(np.int32)


def _log_buckets(distances: np.ndarray, middle: int, max_distance: int) -> np.ndarray:
    """Return distances up to `middle` unchanged, and larger ones on a logarithmic scale.

    In float32 as in PyTorch, because rounding up a logarithm depends on its last bit. (Compared with transformers for
    253 pairs of sizes: all equal; in float64 one distance of one pair falls into the next bucket.)
    """
    far = np.maximum(np.abs(distances), middle + 1)
    logarithms = np.log((far / middle).astype(np.float32))
    if max_distance > middle + 1:
        logarithms = logarithms / np.log(np.float32((max_distance - 1) / middle))
    buckets = np.ceil(logarithms * np.float32(middle - 1)) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * buckets)


def real_tokens(run: Pass, inputs: Any) -> NativeArray:
    """Return which tokens of an `EncoderInput` with a key mask may be attended to, booleans (tokens,)."""
    return run.to_backend(inputs.packed.strip(inputs.packed.is_real))


class DisentangledEmbeddings(Embeddings):
    """LayerNorm(projection(word + position + token type)), without projection if not needed; zero at padding."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        if self.projection is not None:
            sizes = {"in_features": spec.embedding_size, "out_features": spec.hidden_size}
            self.projection = Linear(names["embeddings_projection"], **sizes, bias=False)
            self.norm = LayerNorm(names["embeddings_norm"], features=spec.hidden_size, eps=spec.layer_norm_eps)

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        words, marks = self.words(run, inputs.input_ids), self.marks(run, inputs)
        if self.projection is None:
            embedded = self.norm(run, words, marks)
        else:
            embedded = self.norm(
                run, self.projection(run, words if marks is None else functional.add(run, words, marks))
            )
        embedded = drop(run, embedded, self.dropout)
        if inputs.key_mask is None:
            return embedded
        return functional.scale(run, embedded, factor=real_tokens(run, inputs)[:, None])


class RelativeEmbeddings(Block):
    """The embeddings of relative positions, shared by all layers."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        details, width = spec.details, spec.hidden_size
        self.table = self.norm = self.distance_rows = None
        self._distance_rows: PerVersion[Any] = PerVersion()
        if details.span:
            shape = 2 * details.span, width
            self.table = Parameter(f"{names['relative_embeddings']}.weight", shape=shape, use="table")
            self.distance_rows = distance_rows(details)
        if details.has_norm:
            self.norm = LayerNorm(names["relative_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, run: Pass, first: int, last: int) -> Tensor:
        """Return the rows from `first` to `last` - 1, (rows, hidden)."""
        table = functional.slice_rows(run, self.table.value(run), first=first, last=last)
        if self.table.forms.is_low and run.backend != "cupy":
            table = widened(table)  # like looked-up rows
        return table if self.norm is None else self.norm(run, table)

    def all_distance_rows(self, run: Pass) -> NativeArray:
        """Return `distance_rows` in the active backend's memory."""
        return self._distance_rows.get(run, None, lambda: run.to_backend(self.distance_rows))


@dataclass
class PositionsOfPass:
    """The relative positions that all layers of a pass share.

    In training each layer projects only the embeddings of distances that occur in the batch.

    Attributes:
        is_trained: whether the projected embeddings are valid only for this pass.
        distance_rows: the row of `embeddings` for each distance, as from the function `distance_rows`, in the active
            backend's memory; None without relative positions.
    """

    run: Pass
    block: RelativeEmbeddings
    longest: int  # an upper bound of a sequence's tokens
    is_real: NativeArray | None = None  # False for padding, booleans (tokens,); None without padding
    padding: Sequence[tuple[slice, np.ndarray]] = ()  # see `padding_of_sequences`
    components: list | None = None  # to which each layer appends the terms of its scores

    def __post_init__(self) -> None:
        self.is_trained, self.distance_rows, self._embeddings = not self.run.is_inference, None, None
        rows = self.block.distance_rows
        if rows is None:
            return
        self._first, self._last = 0, self.block.table.shape[0]
        if not self.is_trained:
            self.distance_rows = self.block.all_distance_rows(self.run)
            return
        # Dropout depends on the number of rows, which must not depend on whether a graph is captured.
        middle, furthest = len(rows) // 2, capacity_for(self.longest, FEWEST_TOKENS) - 1
        found = slice(max(middle - furthest, 0), middle + furthest + 1)
        self._first, self._last = int(rows[found][0]), int(rows[found][-1]) + 1
        self.distance_rows = self.block.all_distance_rows(self.run)[found] - self._first  # a graph uploads nothing
        _ = self.embeddings  # computed before the layers, since a layer may run twice

    def relative(self, *tables: Tensor) -> kernels.RelativePositions:
        """Return the relative terms of a layer with these tables."""
        return kernels.RelativePositions(self.distance_rows, *tables, longest=self.longest)

    @property
    def embeddings(self) -> Tensor:
        """The embeddings that `distance_rows` refers to, (rows, hidden); in inference all 2 * span rows."""
        if self._embeddings is None:
            self._embeddings = self.block(self.run, self._first, self._last)
        return self._embeddings


@dataclass(kw_only=True)
class DisentangledContext(LayerContext):
    """A LayerContext with the relative positions."""

    positions: PositionsOfPass

    @property
    def can_be_recorded(self) -> bool:
        return super().can_be_recorded and self.positions.components is None


class Keys(NamedTuple):
    """The keys of an attention, from tokens and from positions."""

    qkv: Tensor  # concatenated query, key and value of the tokens, (tokens, 3 * hidden)
    bias: Tensor  # the bias of their projection, (3 * hidden,)
    # the projected relative positions for queries and for keys, (rows, heads, head_dim) each, or None
    tables: tuple[Any, Any]


class DisentangledAttention(SelfAttention):
    """Self-attention by content and relative position, as in DeBERTa v2 and v3.

    Positions use the projections of content, or their own. Projected positions do not depend on the input: in inference
    they are computed once for each version of the parameters.
    """

    position_key_has_bias = True

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        super().__init__(names, spec, index)
        details = self.details = spec.details
        self.map_key = self.map_query = None
        if details.span and not details.shares_maps:
            sizes = {"in_features": spec.hidden_size, "out_features": spec.hidden_size}
            if details.content_to_position:
                self.map_key = Linear(names["position_key"], **sizes, bias=self.position_key_has_bias)
            if details.position_to_content:
                self.map_query = Linear(names["position_query"], **sizes)
        self._constants: PerVersion[tuple[Any, Any, Any]] = PerVersion()

    @property
    def position_terms(self) -> int:
        """Number of relative terms in the scores; 0 without relative positions."""
        details = self.details
        return details.content_to_position + details.position_to_content if details.span else 0

    def other_weights(self) -> Iterator[Parameter]:
        """Return the weights that project relative positions, which tokens do not pass."""
        return (chosen.weight for chosen in (self.map_key, self.map_query) if chosen is not None)

    def mix(self, run: Pass, source: Tensor, context: DisentangledContext) -> Tensor:
        return self.attend_to(run, self.keys(run, source, context), context)

    def keys(self, run: Pass, source: Tensor, context: DisentangledContext) -> Keys:
        """Return the keys of `source`, (tokens, hidden), and of positions."""
        bias, *tables = self._bias_and_tables(run, context.positions)
        return Keys(functional.linear(run, source, self.projections[0].weight.weight(run), bias), bias, tuple(tables))

    def attend_to(self, run: Pass, keys: Keys, context: DisentangledContext, queries: Tensor | None = None,
                  rows: NativeArray | None = None) -> Tensor:  # fmt: skip
        """Return the attended values of all heads, concatenated, (tokens, hidden).

        Queries are projected from `queries`, (tokens, hidden), by default from the source of the keys. With the indices
        `rows`, queries and results are only of these tokens.
        """
        positions, heads, weight = context.positions, {"num_heads": self.spec.num_heads}, self.projections[0].weight
        qkv, tables = keys.qkv, keys.tables
        projected = [qkv] if queries is None else self._asked_by(run, queries, keys, rows)
        has_tables = any(table is not None for table in tables)
        attended = functional.self_attention(
            run,
            *projected,
            **heads,
            relative=positions.relative(*tables) if has_tables else None,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            scale=self.spec.scale,
            dropout=self.spec.attention_dropout,
            components=positions.components,
            compute_dtype=attention_dtype(run, weight),
        )
        if positions.padding:
            attended = mean_value_for_padding(run, attended, qkv, **heads, padding=positions.padding)
        return attended if rows is None else functional.take_rows(run, attended, rows=rows)

    def _asked_by(self, run: Pass, queries: Tensor, keys: Keys, rows: NativeArray) -> list[Any]:
        """Return query and key-value of all tokens; queries of tokens not in `rows` are zero."""
        width = self.spec.hidden_size
        asked = functional.linear(run, queries, self.projections[0].weight.weight(run), keys.bias)
        query = functional.slice_columns(run, asked, first=0, last=width)
        if rows is not None:
            query = spread_rows(run, query, rows=rows, count=value_of(keys.qkv).shape[0])
        return [query, functional.slice_columns(run, keys.qkv, first=width, last=3 * width)]

    def _bias_and_tables(self, run: Pass, positions: PositionsOfPass) -> tuple[Any, Any, Any]:
        """Return the bias of qkv, (3 * hidden,), and the projected positions, (rows, heads, head_dim) each or None."""

        def computed() -> tuple[Any, ...]:
            shape, tables = (-1, self.spec.num_heads, self.spec.head_size), self._tables(run, positions)
            by_head = (None if table is None else functional.reshape(run, table, shape=shape) for table in tables)
            return self._bias(run), *by_head

        def contiguous() -> tuple[Any, ...]:
            return tuple(
                None if array is None else kernels.array_module(array).ascontiguousarray(array) for array in computed()
            )

        if positions.is_trained:
            return computed()
        return self._constants.get(run, (self.version, positions.block.version), contiguous)

    def _bias(self, run: Pass) -> Tensor:
        return self.projections[0].bias.value(run)

    def _tables(self, run: Pass, positions: PositionsOfPass) -> tuple[Any, Any]:
        """Return the projected positions that queries and keys are multiplied with."""
        details, embeddings = self.details, None if positions.block.table is None else positions.embeddings
        if embeddings is not None and self.position_terms:
            embeddings = drop(run, embeddings, self.dropout)
        if embeddings is None or not details.shares_maps:
            return tuple(
                None if chosen is None else chosen(run, embeddings) for chosen in (self.map_key, self.map_query)
            )
        if not (details.content_to_position or details.position_to_content):
            return None, None
        mapped, widths = self.projections[0](run, embeddings), 3 * [self.spec.hidden_size]
        query, key, _ = functional.split_columns(run, mapped, widths=widths)
        return key if details.content_to_position else None, query if details.position_to_content else None


class DisentangledAttentionByHead(DisentangledAttention):
    """Disentangled attention as in DeBERTa v1.

    Checkpoints store query, key and value of each head in turn as one projection without a bias, with separate biases
    for queries and values. Positions always have their own projections.
    """

    position_key_has_bias = False

    def _make_projections(self, names: Mapping[str, str], layer: LayerSpec) -> list[Linear]:
        shape = (layer.hidden_size,)
        self.query_bias, self.value_bias = (
            Parameter(names[f"{part}_bias"], shape=shape, initial="zeros") for part in ("query", "value")
        )
        return super()._make_projections(names, layer)

    def _bias(self, run: Pass) -> Tensor:
        query, value = self.query_bias.value(run), self.value_bias.value(run)
        plain = value_of(query)
        return functional.concatenate(run, query, kernels.array_module(plain).zeros_like(plain), value)
