"""LUKE's blocks: embeddings of entities, and attention that treats words and entities apart (Yamada et al. 2020,
https://arxiv.org/abs/2010.01057)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore.execution import Pass
from bertcore.families.luke.operations import average_rows, entity_aware_attention, merge_rows, split_rows
from bertcore.nn import functional
from bertcore.nn.embeddings import Embeddings
from bertcore.nn.encoder_layer import LayerContext, SelfAttention, attention_dtype
from bertcore.nn.layers import Embedding, LayerNorm, Linear, drop
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec

INTEGERS = ("entity_ids", "entity_types", "entity_positions", "word_rows", "entity_rows", "all_cu_seqlens")


@dataclass(frozen=True)
class EntitySpec:
    """What LUKE's models vary.

    Attributes:
        vocab_size, embedding_size: rows and width of the table of entities.
        aware_attention: whether queries depend on the kinds of both tokens.
    """

    vocab_size: int
    embedding_size: int
    aware_attention: bool


@dataclass(frozen=True)
class TokenRows:
    """Where words and entities stand among all tokens of a batch: integers, (words,) and (entities,)."""

    words: Any
    entities: Any


@dataclass
class Entities:
    """The packed entities of a batch, in the memory of the backend in force (except the batches).

    Attributes:
        ids, token_type_ids: integers, (entities,).
        position_ids: the positions of each mention's tokens, -1 where there are no more, (entities, longest mention).
        batch: how the entities were padded.
        all_tokens: the same of words and entities: in each sequence entities stand after the words.
        rows, cu_seqlens, key_mask: of words and entities; see `TokenRows`, `EncoderInput`.
        hidden: their last hidden state, (entities, hidden), when it is there.
    """

    ids: Any
    token_type_ids: Any
    position_ids: Any
    batch: PackedBatch
    all_tokens: PackedBatch
    rows: TokenRows
    cu_seqlens: Any
    key_mask: Any
    hidden: Any = None

    def integers(self) -> dict[str, np.ndarray]:
        """Those in host memory, one after the other, as `with_integers` takes them."""
        arrays = self.ids, self.token_type_ids, self.position_ids.reshape(-1), self.rows.words, self.rows.entities
        return dict(zip(INTEGERS, (*arrays, self.cu_seqlens), strict=True))

    def with_integers(self, integers: Mapping[str, Any]) -> "Entities":
        """The same entities with these integers."""
        ids, types, positions, words, entities, offsets = (integers[name] for name in INTEGERS)
        width = len(positions) // len(ids) if len(ids) else 1
        changed = {
            "position_ids": positions.reshape(len(ids), width),
            "rows": TokenRows(words, entities),
            "cu_seqlens": offsets,
        }
        return replace(self, ids=ids, token_type_ids=types, **changed)


class EntityEmbeddings(Block):
    """LayerNorm(entity + mean of the mention's positions + token type); entities are projected where their table is
    narrower than the hidden size."""

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

    def __call__(self, run: Pass, inputs: Entities) -> Any:
        """-> (entities, hidden)."""
        embedded = self.entities(run, inputs.ids)
        if self.projection is not None:
            embedded = self.projection(run, embedded)
        marks = average_rows(run, self.positions.value(run), rows=inputs.position_ids)
        if self.types is not None:
            marks = functional.add(run, marks, self.types(run, inputs.token_type_ids))
        return drop(run, self.norm(run, embedded, marks), self.dropout)


class WordAndEntityEmbeddings(Embeddings):
    """Embeddings of words; where there are entities, of these too, in their places."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.entities = EntityEmbeddings(names, spec)

    def other_weights(self) -> Iterator[Parameter]:
        """The maps of entities."""
        return self.entities.token_weights()

    def __call__(self, run: Pass, inputs: Any) -> Any:
        """An `EncoderInput` -> (tokens, hidden)."""
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

    Without entities, and in a model without `aware_attention`, all tokens use the queries of words for words.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        super().__init__(names, spec, index)
        self.is_aware, width = spec.details.aware_attention, spec.hidden_size
        if self.is_aware:
            self.word_queries = Linear(names["word_to_entity_query"], in_features=width, out_features=width)
            projections = (names["entity_to_word_query"], names["entity_to_entity_query"])
            self.entity_queries = Linear(*projections, in_features=width, out_features=width)

    def other_weights(self) -> Iterator[Parameter]:
        """The further queries, which replace the first where there are entities."""
        return (queries.weight for queries in (self.word_queries, self.entity_queries)) if self.is_aware else iter(())

    def mix(self, run: Pass, source: Any, context: LayerContext) -> Any:
        """The attended values of all heads side by side, (tokens, hidden)."""
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
