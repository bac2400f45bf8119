"""Transformer-XL's embeddings, narrower for rarer words (Baevski and Auli 2018, arXiv:1809.10853)."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.nn import functional
from bertcore.nn.layers import Embedding, drop
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.tape import value_of


class AdaptiveEmbeddings(Block):
    """sqrt(hidden size) times each word's embedding, projected to the hidden size.

    Words are counted by frequency; the k-th group of them (spec.details.groups) has vectors of spec.embedding_size /
    div_val^k. With div_val 1 there is one table, and no projection where it is as wide as the hidden size.
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
        """The projections of rare words, whose results count for few tokens."""
        return iter(self.projections[1:])

    def __call__(self, run: Pass, inputs: Any) -> Any:
        """An `EncoderInput` -> (tokens, hidden)."""
        if len(self.groups) == 1:
            return drop(
                run, functional.scale(run, self._embedded(run, 0, inputs.input_ids), factor=self.factor), self.dropout
            )
        ids, xp = inputs.input_ids, kernels.array_module(inputs.input_ids)
        parts = []
        for index, (first, end) in enumerate(self.groups):  # by all, for how many words a group has is on the GPU
            embedded = self._embedded(run, index, xp.clip(ids - first, 0, end - first - 1))
            inside = ((ids >= first) & (ids < end)).astype(value_of(embedded).dtype)
            parts.append(functional.scale(run, embedded, factor=inside[:, None]))
        total = functools.reduce(functools.partial(functional.add, run), parts)
        return drop(run, functional.scale(run, total, factor=self.factor), self.dropout)

    def _embedded(self, run: Pass, group: int, ids: Any) -> Any:
        embedded = self.tables[group](run, ids)
        if not self.projections:
            return embedded
        return functional.linear(run, embedded, self.projections[group].weight(run), None)
