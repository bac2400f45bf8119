"""The classifying heads: scores for a sequence, or for each of its tokens."""

from dataclasses import dataclass
from typing import Any

from bertcore.nn import functional
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Block

SOURCES = ("pooler", "first", "last", "mean", "tokens", "entities")


@dataclass(frozen=True)
class ClassifierSpec:
    """What a family's classifier is made of.

    Attributes:
        output: the name of the last map, without ".weight" and ".bias".
        source: what it classifies: a sequence by the encoder's "pooler", by the hidden state of its "first" or "last"
            token or their "mean", or each of its "tokens"; or "entities" (`heads.entities`).
        dense: the name of a map before the last one, of the hidden size; None where there is none.
        activation: after `dense`, or on the source itself where there is none.
        bias: whether the last map has one.
    """

    output: str
    source: str
    dense: str | None = None
    activation: str | None = None
    bias: bool = True


class Classifier(Block):
    """output(activation(dense(source))) with `num_labels` scores."""

    def __init__(self, names: ClassifierSpec, spec: Any, num_labels: int):
        width = spec.hidden_size
        self.source = names.source
        self.activation = names.activation if names.dense is None else None
        self.dense = None
        if names.dense is not None:
            self.dense = Linear(names.dense, in_features=width, out_features=width, activation=names.activation)
        self.output = Linear(names.output, in_features=width, out_features=num_labels, bias=names.bias)

    def __call__(self, encoded: Any) -> Any:
        """An `Encoded` batch -> logits, (tokens, num_labels), or (sequences that have tokens, num_labels)."""
        features = self._features(encoded)
        if self.dense is not None:
            features = self.dense(features)
        if self.activation is not None:
            features = functional.activation(features, name=self.activation)
        return self.output(features)

    def _features(self, encoded: Any) -> Any:
        if self.source == "pooler":
            return encoded.pooled
        if self.source == "first":
            return functional.take_rows(encoded.hidden, rows=encoded.inputs.first_tokens)
        if self.source == "last":
            return functional.take_rows(encoded.hidden, rows=encoded.inputs.last_tokens)
        if self.source == "mean":
            return functional.sequence_mean(encoded.hidden, cu_seqlens=encoded.inputs.cu_seqlens)
        return encoded.hidden
