"""LUKE's blocks: entity embeddings and entity-aware attention (Yamada et al. 2020, arXiv:2010.01057)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray, working_dtype
from bertcore.nn import functional
from bertcore.nn.blocks import Embeddings, LayerContext, SelfAttention, attention_dtype
from bertcore.nn.functional import split_heads
from bertcore.nn.functional.attention import (
    attend,
    attend_with_pullback,
    note_probabilities,
    with_joined_heads,
    with_seed,
)
from bertcore.nn.layers import Embedding, LayerNorm, Linear, drop
from bertcore.nn.operation import operation
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor


@operation()
def average_rows(run: Pass, table: Tensor, *, rows: NativeArray) -> Tensor:
    """Return means of rows of `table`, (rows, features): (means, features); zeros for a mean of no rows.

    `rows` are integers, (means, most rows of a mean), with at least one column, padded with -1.
    """
    xp, wide_dtype = kernels.array_module(rows), working_dtype(table.dtype)
    counts = xp.maximum((rows >= 0).sum(axis=1), 1).astype(wide_dtype)[:, None]

    def pullback(grad):
        means, places = xp.nonzero(rows >= 0)
        shares = (grad.astype(wide_dtype, copy=False) / counts).astype(grad.dtype, copy=False)
        return (
            kernels.embedding_backward(
                shares[means], kernels.EmbeddingSaved(rows[means, places], table.shape[0]), backend=run.backend
            ),
        )

    total = 0
    for column in rows.T:  # as many as the tokens of the longest mention: few
        wide = kernels.embedding(xp.maximum(column, 0), table, backend=run.backend).astype(wide_dtype, copy=False)
        total = total + xp.where(column[:, None] >= 0, wide, xp.zeros((), wide_dtype))
    return (total / counts).astype(table.dtype, copy=False), pullback


@operation()
def merge_rows(run: Pass, first: Tensor, second: Tensor, *, first_rows: NativeArray, second_rows: Any) -> Tensor:
    """Return one array, (rows of both, features): `first` at `first_rows`, `second` at `second_rows`."""
    merged = kernels.array_module(first).empty((first.shape[0] + second.shape[0], first.shape[1]), first.dtype)
    merged[first_rows], merged[second_rows] = first, second
    return merged, lambda grad: (grad[first_rows], grad[second_rows])


@operation()
def split_rows(run: Pass, rows: Tensor, *, first_rows: NativeArray, second_rows: NativeArray) -> tuple[Tensor, Tensor]:
    """Return the two parts that `merge_rows` joined, given the same indices."""

    def pullback(of_first, of_second):
        grad = kernels.array_module(rows).zeros(rows.shape, rows.dtype)
        for places, part in ((first_rows, of_first), (second_rows, of_second)):
            if part is not None:
                grad[places] = part
        return (grad,)

    parts = (kernels.embedding(places, rows, backend=run.backend) for places in (first_rows, second_rows))
    return tuple(parts), pullback


def _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows):
    """Return query, key and value of `entity_aware_attention`, (tokens, heads, 2 * head_dim) each."""
    query, key, value = split_heads(qkv, num_heads=num_heads)
    tokens, heads, size = query.shape
    xp = kernels.array_module(qkv)
    double_query, double_key, double_value = (xp.zeros((tokens, heads, 2 * size), qkv.dtype) for _ in range(3))
    double_query[:, :, :size], double_value[:, :, :size] = query, value
    double_query[word_rows, :, size:] = word_queries.reshape(-1, heads, size)
    by_kind = entity_queries.reshape(entity_queries.shape[0], 2, heads, size).transpose(0, 2, 1, 3)
    double_query[entity_rows] = by_kind.reshape(-1, heads, 2 * size)
    double_key[word_rows, :, :size] = key[word_rows]
    double_key[entity_rows, :, size:] = key[entity_rows]
    return double_query, double_key, double_value


def entity_aware_attention(
    run: Pass,
    qkv: Tensor,
    word_queries: Tensor,
    entity_queries: Tensor,
    *,
    num_heads: int,
    word_rows: NativeArray,
    entity_rows: NativeArray,
    **options: Any,
) -> Tensor:
    """Return attention with separate queries for words and for entities, within each packed sequence.

    Source: Yamada et al. 2020, arXiv:2010.01057, section 3.2.

    It is computed with heads of twice the size: a token's two queries are concatenated, and its key is in the half of
    its kind with zeros in the other, so that a product is with the query for the key's kind. Two attentions, over words
    and over entities, merged by their log-sum-exp, would save half of these products, which is 3% of all in LUKE-base's
    layers at 128 tokens and 10% at 512, but gradients would need the log-sum-exp's.

    Args:
        qkv: concatenated query, key and value of all tokens, (tokens, 3 * hidden); the query is the words' for words,
            and is not read for entities. The result is (tokens, hidden).
        word_queries: words' queries for entities, (words, hidden).
        entity_queries: entities' concatenated queries for words and for entities, (entities, 2 * hidden).
        word_rows, entity_rows: the indices of words and entities among the tokens, (words,) and (entities,).
        options: cu_seqlens, attn_mask, compute_dtype and dropout as for `attention`.
    """
    asked = with_seed(run, options) | {"num_heads": num_heads, "word_rows": word_rows, "entity_rows": entity_rows}
    return note_probabilities(run, _entity_aware_attention(run, qkv, word_queries, entity_queries, **asked))


@operation()
def _entity_aware_attention(
    run: Pass, qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, **options
):
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    (output, *probabilities), backward = attend_with_pullback(run, doubled, scale=size**-0.5, **options)

    def pullback(grad, *of_probabilities):
        xp = kernels.array_module(qkv)
        grad_output = None
        if grad is not None:
            grad_output = xp.zeros(output.shape, grad.dtype)
            grad_output[:, :, :size] = grad.reshape(-1, num_heads, size)
        query, key, value, *_ = backward(grad_output, *of_probabilities)
        grad_qkv = xp.zeros(qkv.shape, qkv.dtype)
        grad_query, grad_key, grad_value = split_heads(grad_qkv, num_heads=num_heads)
        grad_query[word_rows] = query[word_rows, :, :size]
        grad_key[word_rows], grad_key[entity_rows] = key[word_rows, :, :size], key[entity_rows, :, size:]
        grad_value[...] = value[:, :, :size]
        by_kind = query[entity_rows].reshape(-1, num_heads, 2, size).transpose(0, 2, 1, 3)
        words = query[word_rows, :, size:].reshape(word_queries.shape)
        return grad_qkv, words, by_kind.reshape(entity_queries.shape)

    return with_joined_heads(output[:, :, :size], *probabilities), pullback


@_entity_aware_attention.inference
def _entity_aware_forward(run, qkv, word_queries, entity_queries, *, num_heads, word_rows, entity_rows, **options):
    doubled = _double_heads(qkv, word_queries, entity_queries, num_heads, word_rows, entity_rows)
    size = doubled[0].shape[2] // 2
    results = attend(run, doubled, scale=size**-0.5, **options)
    output, *probabilities = results if type(results) is tuple else (results,)
    return with_joined_heads(output[:, :, :size], *probabilities)


INTEGERS = ("entity_ids", "entity_types", "entity_positions", "word_rows", "entity_rows", "all_cu_seqlens")


@dataclass(frozen=True)
class EntitySpec:
    """Settings of LUKE's entity embeddings and attention."""

    vocab_size: int  # rows of the table of entities
    embedding_size: int  # its width
    aware_attention: bool  # whether queries depend on the kinds of both tokens


@dataclass(frozen=True)
class TokenRows:
    """Indices of words and of entities among all tokens of a batch, (words,) and (entities,)."""

    words: NativeArray
    entities: NativeArray


@dataclass
class Entities:
    """The packed entities of a batch, in the active backend's memory (except the layouts)."""

    # integers, (entities,)
    ids: NativeArray
    token_type_ids: NativeArray
    position_ids: NativeArray  # the positions of each mention's tokens, padded with -1, (entities, longest mention)
    batch: PackedBatch  # the layout of the entities
    all_tokens: PackedBatch  # the layout of words and entities; in each sequence entities follow the words
    # for words and entities; see `TokenRows`, `EncoderInput`
    rows: TokenRows
    cu_seqlens: NativeArray
    key_mask: NativeArray | None
    hidden: Tensor | None = None  # their last hidden state, (entities, hidden), once computed

    def integers(self) -> dict[str, np.ndarray]:
        """Return the integer arrays by name, as `with_integers` takes them."""
        arrays = self.ids, self.token_type_ids, self.position_ids.reshape(-1), self.rows.words, self.rows.entities
        return dict(zip(INTEGERS, (*arrays, self.cu_seqlens), strict=True))

    def with_integers(self, integers: Mapping[str, Any]) -> "Entities":
        """Return the same entities with these integers."""
        ids, types, positions, words, entities, offsets = (integers[name] for name in INTEGERS)
        width = len(positions) // len(ids) if len(ids) else 1
        changed = {
            "position_ids": positions.reshape(len(ids), width),
            "rows": TokenRows(words, entities),
            "cu_seqlens": offsets,
        }
        return replace(self, ids=ids, token_type_ids=types, **changed)


class EntityEmbeddings(Block):
    """LayerNorm(entity + mean of the mention's positions + token type).

    Entities are projected if their table is not as wide as the hidden size.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        width, entities, self.dropout = spec.hidden_size, spec.details, spec.embedding_dropout
        sizes = {"rows": entities.vocab_size, "features": entities.embedding_size}
        self.entities = Embedding(names["entity_embeddings"], **sizes, padding_row=0)
        self.projection = self.types = None
        if entities.embedding_size != width:
            sizes = {"in_features": entities.embedding_size, "out_features": width}
            self.projection = Linear(names["entity_projection"], **sizes, bias=False)
        self.positions = Parameter(
            f"{names['entity_position_embeddings']}.weight", shape=(spec.max_positions, width), use="table"
        )
        if spec.type_vocab_size:
            self.types = Embedding(names["entity_type_embeddings"], rows=spec.type_vocab_size, features=width)
        self.norm = LayerNorm(names["entity_embeddings_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, run: Pass, inputs: Entities) -> Tensor:
        """Map `Entities` to (entities, hidden)."""
        embedded = self.entities(run, inputs.ids)
        if self.projection is not None:
            embedded = self.projection(run, embedded)
        marks = average_rows(run, self.positions.value(run), rows=inputs.position_ids)
        if self.types is not None:
            marks = functional.add(run, marks, self.types(run, inputs.token_type_ids))
        return drop(run, self.norm(run, embedded, marks), self.dropout)


class WordAndEntityEmbeddings(Embeddings):
    """Embeddings of words and, if there are entities, of these at their positions in the sequence."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.entities = EntityEmbeddings(names, spec)

    def other_weights(self) -> Iterator[Parameter]:
        """Return the weights of the entities."""
        return self.entities.token_weights()

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        words, entities = super().__call__(run, inputs), getattr(inputs, "entities", None)
        if entities is None:
            return words
        rows = entities.rows
        return merge_rows(run, words, self.entities(run, entities), first_rows=rows.words, second_rows=rows.entities)


@dataclass(kw_only=True)
class EntityContext(LayerContext):
    """A LayerContext with the rows of words and entities."""

    rows: TokenRows
    can_be_recorded = False


class EntityAwareAttention(SelfAttention):
    """Self-attention whose queries depend on the kinds of both tokens, word or entity (section 3.2).

    Without entities, or without `aware_attention`, all tokens use the word-to-word queries.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        super().__init__(names, spec, index)
        self.is_aware, width = spec.details.aware_attention, spec.hidden_size
        if self.is_aware:
            self.word_queries = Linear(names["word_to_entity_query"], in_features=width, out_features=width)
            projections = (names["entity_to_word_query"], names["entity_to_entity_query"])
            self.entity_queries = Linear(*projections, in_features=width, out_features=width)

    def other_weights(self) -> Iterator[Parameter]:
        """Return the weights of the additional queries, which replace the first ones if there are entities."""
        return (queries.weight for queries in (self.word_queries, self.entity_queries)) if self.is_aware else iter(())

    def mix(self, run: Pass, source: Tensor, context: LayerContext) -> Tensor:
        if not self.is_aware or not isinstance(context, EntityContext):
            return super().mix(run, source, context)
        rows, joined = context.rows, self.projections[0]
        words, entities = split_rows(run, source, first_rows=rows.words, second_rows=rows.entities)
        return entity_aware_attention(
            run,
            joined(run, source),
            self.word_queries(run, words),
            self.entity_queries(run, entities),
            num_heads=self.spec.num_heads,
            word_rows=rows.words,
            entity_rows=rows.entities,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            compute_dtype=attention_dtype(run, joined.weight),
            dropout=self.spec.attention_dropout,
        )
