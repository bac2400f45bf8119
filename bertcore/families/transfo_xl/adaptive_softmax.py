"""Transformer-XL's language model: the adaptive softmax (Grave et al. 2016, arXiv:1609.04309)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForCausalLM
from bertcore.models.outputs import LogitsOutput
from bertcore.nn import functional
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import value_of


@dataclass(frozen=True)
class AdaptiveSoftmaxSpec:
    """A family's names of the head's parts, without ".weight" and ".bias"; "{group}" stands for the number of a group.

    Attributes:
        output: of the maps onto the words of each group.
        projection: of the maps before them; the full name.
        group: beginning of "_weight" and "_bias" of the map onto the groups but the first.
        shares_projections: all projections but the first are those of the embeddings.
    """

    output: str
    projection: str
    group: str
    shares_projections: bool


class AdaptiveSoftmax(Block):
    """Probabilities of the frequent words and of groups of others; within each group, of its words.

    Widths, tables and where they are tied follow the embeddings (`AdaptiveEmbeddings`).
    """

    def __init__(self, head_spec: AdaptiveSoftmaxSpec, spec: EncoderSpec, embeddings: Any):
        self.bounds = spec.details.groups
        self.outputs, self.biases = [], []
        for index, table in enumerate(embeddings.tables):
            name, weight = head_spec.output.format(group=index), table.table
            if spec.tied_decoder:
                weight = weight.used_as("weight")
            else:
                weight = Parameter(f"{name}.weight", shape=weight.part_shape, use="weight")
            self.outputs.append(weight)
            self.biases.append(Parameter(f"{name}.bias", shape=weight.part_shape[:1], initial="zeros"))
        self.projections = [
            self._projection(head_spec, index, embeddings)
            for index in range(len(self.bounds))
            if embeddings.projections
        ]
        self.group_weight = self.group_bias = None
        count = len(self.bounds) - 1
        if count:
            self.group_weight = Parameter(f"{head_spec.group}_weight", shape=(count, spec.embedding_size), use="weight")
            self.group_bias = Parameter(f"{head_spec.group}_bias", shape=(count,), initial="zeros")

    def _projection(self, head_spec: AdaptiveSoftmaxSpec, index: int, embeddings: Any) -> Parameter:
        shared = embeddings.projections[index if len(embeddings.projections) > 1 else 0]
        if index and head_spec.shares_projections:
            return shared
        return Parameter(head_spec.projection.format(group=index), shape=shared.part_shape)

    def __call__(self, run: Pass, hidden: Any) -> Any:
        """(tokens, hidden) -> the logarithm of each word's probability, (tokens, vocabulary)."""
        first, *others = (
            functional.log_softmax(run, self._scores(run, hidden, index)) for index in range(len(self.bounds))
        )
        words = self.bounds[0][1]
        parts = [functional.slice_columns(run, first, first=0, last=words)]
        for index, part in enumerate(others, start=words):
            parts.append(functional.add(run, part, functional.slice_columns(run, first, first=index, last=index + 1)))
        logarithms = functional.concatenate(run, *parts, axis=1)
        dtype = value_of(hidden).dtype
        return logarithms if value_of(logarithms).dtype == dtype else logarithms.astype(dtype)  # of low precision

    def loss(self, run: Pass, hidden: Any, labels: np.ndarray) -> Any:
        """Return the mean negative log-likelihood of `labels`, (tokens,) in host memory, -100 for no label.

        Of a group only the tokens that need it are computed.
        """
        words, groups = labels.copy(), list(self._members(labels))
        for index, where, _ in groups:
            words[where] = self.bounds[0][1] + index - 1
        loss = functional.cross_entropy(run, self._scores(run, hidden, 0), labels=run.to_backend(words))
        for index, where, inside in groups:
            chosen = functional.take_rows(run, hidden, rows=run.to_backend(where))
            part = functional.cross_entropy(run, self._scores(run, chosen, index), labels=run.to_backend(inside))
            loss = functional.add(
                run, loss, functional.scale(run, part, factor=len(where) / np.count_nonzero(labels >= 0))
            )
        return loss

    def _members(self, labels: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each group but the first that has labels: its number, whose they are, and their numbers within it."""
        for index, (first, end) in enumerate(self.bounds[1:], start=1):
            where = np.flatnonzero((labels >= first) & (labels < end))
            if where.size:
                yield index, where, labels[where] - first

    def _scores(self, run: Pass, hidden: Any, index: int) -> Any:
        """Scores before the softmax: of a group's words, in the first group followed by those of the other groups."""
        if self.projections:
            hidden = functional.linear(run, hidden, self._transposed(run, index, hidden), None)
        own = index if len(self.outputs) > 1 else 0
        scores = functional.linear(run, hidden, self.outputs[own].weight(run), self.biases[own].value(run))
        first, end = self.bounds[index]
        if len(self.outputs) == 1 < len(self.bounds):  # one map for all
            scores = functional.slice_columns(run, scores, first=first, last=end)
        if index or self.group_weight is None:
            return scores
        groups = functional.linear(run, hidden, self.group_weight.weight(run), self.group_bias.value(run))
        return functional.concatenate(run, scores, groups, axis=1)

    def _transposed(self, run: Pass, index: int, hidden: Any) -> Any:
        """The projection of a group in the direction opposite to the embeddings', and in the hidden states' dtype."""
        matrix, dtype = self.projections[index].value(run), value_of(hidden).dtype
        if value_of(matrix).dtype != dtype:  # a model of low precision, which has no gradients
            matrix = matrix.astype(dtype)
        return functional.transpose(run, matrix)


class AdaptiveCausalLM(AutoModelForCausalLM):
    """AutoModelForCausalLM with an adaptive softmax: logits are logarithms of probabilities.

    Labels are compared with the prediction of the token before each; with labels no logits are returned, since the
    loss needs few of them.
    """

    predicts_next_words = True

    def _head(self, task: str, spec: AdaptiveSoftmaxSpec) -> Block:
        return AdaptiveSoftmax(spec, self.spec, self.encoder.embeddings)

    def _output(self, encoded: Encoded, labels: Any = None) -> LogitsOutput:
        head = self.heads[0]
        if labels is None:
            return LogitsOutput(
                logits=encoded.packed.pad(encoded.run, head(encoded.run, encoded.hidden)), traced=encoded.traced
            )
        words = losses.next_words(encoded.packed, labels, self.spec.vocab_size)
        return LogitsOutput(loss=head.loss(encoded.run, encoded.hidden, words), traced=encoded.traced)
