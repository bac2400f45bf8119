"""Embeddings, the input of an encoder's layers, and poolers, which read their output."""

from collections.abc import Mapping
from typing import Any

from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.layers import Embedding, LayerNorm, Linear, drop
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor


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
        """True if a program can record them as steps (`execution.recorded`)."""
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
