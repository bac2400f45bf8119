"""Transformer-XL's blocks: relative attention and adaptive embeddings (Dai et al. 2019, arXiv:1901.02860)."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.blocks import LayerContext, Sublayer, attention_dtype, make_norm
from bertcore.nn.layers import Embedding, Linear, drop
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass
class PassPositions:
    """Positions of queries and keys in one pass, shared by its layers; arrays are in the backend's memory."""

    sinusoids: Tensor  # the encoding of each distance, (distances, hidden)
    distance_rows: NativeArray  # the row of `sinusoids` for each distance, as in `kernels.RelativePositions`
    cu_seqlens_k: NativeArray  # offsets of the keys' sequences, int32 (sequences + 1,)
    key_rows: NativeArray | None = None  # with a memory, the rows of (memory, then hidden) in the order of the keys
    query_rows: NativeArray | None = None  # with a memory, the rows of the keys that are also queries
    # segments of queries and keys, integers; None if segments do not matter
    segment_ids: NativeArray | None = None
    segment_ids_k: NativeArray | None = None
    # the halves of a batch whose second half runs backwards; None for other batches
    halves: "tuple[HalfBatch, HalfBatch] | None" = None
    position_keys: dict | None = None  # a cache of the projected `sinusoids` by block; None while a tape records
    before_dropout: NativeArray | None = None  # `sinusoids` before dropout; kept alive because a CUDA graph reads it

    def half(self, sequences: slice, tokens: slice, keys: slice, distance_rows: NativeArray) -> "HalfBatch":
        """Return the part for some sequences of a batch of equal lengths, with these `distance_rows`."""
        cut = replace(
            self,
            distance_rows=distance_rows,
            cu_seqlens_k=_offsets(self.cu_seqlens_k, sequences),
            segment_ids=None if self.segment_ids is None else self.segment_ids[tokens],
            segment_ids_k=None if self.segment_ids_k is None else self.segment_ids_k[keys],
        )
        return HalfBatch(sequences, tokens, keys, cut)

    def keys(self, run: Pass, hidden: Tensor, memory: NativeArray | None) -> Tensor:
        """Return the source of the keys: the memory (or None) and the hidden states, sequence by sequence."""
        if memory is None:
            return hidden
        return functional.take_rows(run, functional.concatenate(run, memory, hidden), rows=self.key_rows)


@dataclass
class HalfBatch:
    """Half the sequences of a batch."""

    sequences: slice
    tokens: slice
    keys: slice
    relations: PassPositions

    def context(self, whole: "RecurrentContext") -> "RecurrentContext":
        """Return this half of the batch's context."""
        mask = whole.key_mask
        if mask is not None and mask.shape[0] > 1:
            mask = mask[self.sequences]
        offsets = _offsets(whole.cu_seqlens, self.sequences)
        return replace(whole, cu_seqlens=offsets, key_mask=mask, relations=self.relations)

    def cut(self, run: Pass, query: Tensor, for_position: Tensor | None, key: Tensor, value: Tensor,
            scores: Tensor | None) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Return this half of the arrays."""
        queries = (None if array is None else _part(run, array, self.tokens) for array in (query, for_position, scores))
        query, for_position, scores = queries
        return query, for_position, _part(run, key, self.keys), _part(run, value, self.keys), scores


def _part(run: Pass, array: Tensor, where: slice) -> Tensor:
    return functional.slice_rows(run, array, first=where.start, last=where.stop)


def _offsets(cu_seqlens: NativeArray, sequences: slice) -> NativeArray:
    offsets = cu_seqlens[sequences.start : sequences.stop + 1]
    return offsets - offsets[:1]


@functools.lru_cache(maxsize=8)
def sinusoids(first: int, last: int, width: int, dtype: str) -> np.ndarray:
    """Return the encodings of the distances from `first` to `last`, (distances, width).

    Sines, then cosines, of distance / 10000^(2i / width).
    """
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(first, last + 1)[:, None] * frequencies
    encodings = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(dtype)
    encodings.flags.writeable = False
    return encodings


@dataclass(kw_only=True)
class RecurrentContext(LayerContext):
    """The LayerContext of recurrent layers."""

    relations: PassPositions  # positions and segments
    memories: list[Any]  # each layer's memory, (sequences * memory, hidden), or None
    can_be_recorded = False

    def in_use(self) -> list[Any]:
        keys = self.relations.position_keys
        return [self, *(() if keys is None else list(keys.values()))]


class RelativeAttention(Sublayer):
    """Relative attention: content scores and position scores, each with its own queries."""

    position_terms = 1

    def __init__(self, layer: LayerSpec, index: int):
        self.num_heads, self.head_dim, self.index = layer.num_heads, layer.head_size, index
        self.norm_first = layer.norm_first
        self.dropout, self.attention_dropout = layer.dropout, layer.attention_dropout

    def _position_keys(self, run: Pass, relations: PassPositions, weight: Parameter) -> Tensor:
        """Return the keys of positions, (distances, heads * head_dim)."""
        kept = {} if relations.position_keys is None else relations.position_keys
        version, (known, keys) = weight.version, kept.get(self, (None, None))  # read before the values
        if known != version:
            keys = functional.linear(run, relations.sinusoids, weight.weight(run), None)
            kept[self] = version, keys
        return keys

    def _heads(self, run: Pass, array: Tensor) -> Tensor:
        """Reshape (rows, heads * head_dim) to (rows, heads, head_dim)."""
        return functional.reshape(run, array, shape=(-1, self.num_heads, self.head_dim))

    def _attend(
        self,
        run: Pass,
        queries: tuple[Any, Any],
        keys: tuple[Any, Any, Any],
        context: RecurrentContext,
        weight: Parameter,
        segment_scores: Tensor | None = None,
    ) -> Tensor:
        """Return relative attention, (tokens, heads * head_dim); `weight` decides its precision."""
        (query, for_position), (key, value, positions) = queries, keys
        arrays = query, self._heads(run, for_position), key, value, segment_scores
        given, halves = (self._heads(run, positions), attention_dtype(run, weight)), context.relations.halves
        if halves is None:
            return self._attended(run, context, *given, *arrays)
        probabilities: list | None = None if run.trace.attentions is None else []
        inner = replace(run, trace=replace(run.trace, attentions=probabilities))
        parts = [self._attended(inner, half.context(context), *given, *half.cut(run, *arrays)) for half in halves]
        if probabilities is not None:
            run.trace.attentions.append(functional.concatenate(run, *probabilities))
        return functional.concatenate(run, *parts)

    def _attended(
        self, run: Pass, context: RecurrentContext, positions: Tensor, compute_dtype: str | None, *arrays: Tensor
    ) -> Tensor:
        relations, (query, for_position, key, value, scores) = context.relations, arrays
        relative = kernels.RelativePositions(
            relations.distance_rows,
            position_key=positions,
            query_for_position=for_position,
            segment_ids=None if scores is None else relations.segment_ids,
            segment_ids_k=None if scores is None else relations.segment_ids_k,
            segment_scores=scores,
            longest=(len(relations.distance_rows) + 1) // 2,
        )
        return functional.self_attention(
            run,
            *(query, key, value),
            num_heads=self.num_heads,
            relative=relative,
            cu_seqlens=context.cu_seqlens,
            cu_seqlens_k=relations.cu_seqlens_k,
            attn_mask=context.key_mask,
            dropout=self.attention_dropout,
            compute_dtype=compute_dtype,
        )


class AdaptiveEmbeddings(Block):
    """sqrt(hidden size) times each word's embedding, projected to the hidden size.

    Words are sorted by frequency; the k-th group of them (spec.details.groups) has vectors of width spec.embedding_size
    / div_val^k. With div_val 1 there is one table, without projection if it is as wide as the hidden size.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        details, table, projection = spec.details, names["word_embeddings"], names["embeddings_projection"]
        self.factor, self.dropout = spec.hidden_size**0.5, spec.embedding_dropout
        self.groups = details.groups if details.div_val > 1 else ((0, spec.vocab_size),)
        widths = [spec.embedding_size // details.div_val**index for index in range(len(self.groups))]
        self.tables = [
            Embedding(table.format(group=index), rows=end - first, features=width)
            for index, ((first, end), width) in enumerate(zip(self.groups, widths, strict=True))
        ]
        self.projections: list[Parameter] = []
        if details.div_val > 1 or spec.embedding_size != spec.hidden_size:
            self.projections = [
                Parameter(projection.format(group=index), shape=(spec.hidden_size, width), use="weight")
                for index, width in enumerate(widths)
            ]

    def other_weights(self) -> Iterator[Parameter]:
        """Return the projections of rarer words, whose results matter for few tokens."""
        return iter(self.projections[1:])

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        """Map an `EncoderInput` to (tokens, hidden)."""
        if len(self.groups) == 1:
            return drop(
                run, functional.scale(run, self._embedded(run, 0, inputs.input_ids), factor=self.factor), self.dropout
            )
        ids, xp = inputs.input_ids, kernels.array_module(inputs.input_ids)
        parts = []
        for index, (first, end) in enumerate(self.groups):  # all ids: a group's count is on the GPU
            embedded = self._embedded(run, index, xp.clip(ids - first, 0, end - first - 1))
            inside = ((ids >= first) & (ids < end)).astype(value_of(embedded).dtype)
            parts.append(functional.scale(run, embedded, factor=inside[:, None]))
        total = functools.reduce(functools.partial(functional.add, run), parts)
        return drop(run, functional.scale(run, total, factor=self.factor), self.dropout)

    def _embedded(self, run: Pass, group: int, ids: NativeArray) -> Tensor:
        embedded = self.tables[group](run, ids)
        if not self.projections:
            return embedded
        return functional.linear(run, embedded, self.projections[group].weight(run), None)


class PositionBiases(Block):
    """The biases of queries for content (u in the paper) and for positions (v)."""

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
        """Return the projection of distances, which tokens do not pass."""
        yield self.positions.weight

    def mix(self, run: Pass, source: Tensor, context: SharedBiasesContext) -> Tensor:
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
