"""LUKE's blocks: embeddings of entities, and attention that knows words from entities (Yamada et al. 2020,
https://arxiv.org/abs/2010.01057)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.nn import functional
from bertcore.nn.encoder import LayerContext, SelfAttention
from bertcore.nn.layers import Embedding, LayerNorm, Linear
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block, Parameter


@dataclass(frozen=True)
class EntitySpec:
    """What LUKE varies beside what every encoder does.

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
class EntityInput:
    """The packed entities of a batch, in the memory of the backend in force (but the batches).

    Attributes:
        ids, token_type_ids: integers, (entities,).
        position_ids: the positions of each mention's tokens, -1 where there are no more, (entities, longest mention).
        batch: how the entities were padded.
        all_tokens: the same of words and entities: in each sequence entities stand after the words.
        rows, cu_seqlens, key_mask: of words and entities; see `TokenRows`, `EncoderInput`.
    """

    ids: Any
    token_type_ids: Any
    position_ids: Any
    batch: PackedBatch
    all_tokens: PackedBatch
    rows: TokenRows
    cu_seqlens: Any
    key_mask: Any


class EntityEmbeddings(Block):
    """LayerNorm(entity + mean of the mention's positions + token type); entities are projected where their table is
    narrower than the hidden size."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width, entities = spec.hidden_size, spec.details
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

    def __call__(self, inputs: EntityInput) -> Any:
        """-> (entities, hidden)."""
        embedded = self.entities(inputs.ids)
        if self.projection is not None:
            embedded = self.projection(embedded)
        marks = functional.average_rows(self.positions.value, rows=inputs.position_ids)
        if self.types is not None:
            marks = functional.add(marks, self.types(inputs.token_type_ids))
        return self.norm(embedded, marks)


class EntityAwareAttention(SelfAttention):
    """Self-attention whose queries depend on the kinds of both tokens, word or entity (section 3.2).

    Words' queries for words are those that all tokens use where there are no entities.
    """

    def __init__(self, names: Mapping[str, str], spec: Any):
        super().__init__(names, spec)
        width = spec.hidden_size
        self.word_queries = Linear(names["word_to_entity_query"], in_features=width, out_features=width)
        projections = (names["entity_to_word_query"], names["entity_to_entity_query"])
        self.entity_queries = Linear(*projections, in_features=width, out_features=width)

    def _attend(self, hidden: Any, context: LayerContext, compute_dtype: str | None) -> Any:
        rows = context.shared
        if rows is None:
            return super()._attend(hidden, context, compute_dtype)
        return functional.entity_aware_attention(
            self.qkv(hidden),
            self.word_queries(functional.take_rows(hidden, rows=rows.words)),
            self.entity_queries(functional.take_rows(hidden, rows=rows.entities)),
            num_heads=self.num_heads,
            word_rows=rows.words,
            entity_rows=rows.entities,
            cu_seqlens=context.cu_seqlens,
            attn_mask=context.key_mask,
            attentions=context.attentions,
            compute_dtype=compute_dtype,
        )
