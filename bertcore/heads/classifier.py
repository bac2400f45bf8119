"""The classifying heads: scores for a sequence, or for each of its tokens."""

from dataclasses import dataclass
from typing import Any

from bertcore import kernels
from bertcore.nn import functional
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Block


@dataclass(frozen=True)
class ClassifierSpec:
    """What a family's classifier is made of.

    Attributes:
        output: the name of the last map, without ".weight" and ".bias".
        source: what it classifies: a sequence by the encoder's "pooler", by the hidden state of its "first" or "last"
            token, of the "last_word", which is not the word that pads, or by their "mean", or each of its "tokens"; or
            "entities" (`heads.entities`).
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
        self.source, self.padding = names.source, spec.pad_token_id
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
        if self.source == "last_word":
            return functional.take_rows(encoded.hidden, rows=_last_words(encoded.inputs, self.padding))
        if self.source == "mean":
            return functional.average_sequences(encoded.hidden, cu_seqlens=encoded.inputs.cu_seqlens)
        return encoded.hidden


def _last_words(inputs: Any, padding: int | None) -> Any:
    """The packed index of each sequence's last token that is another word than `padding`; its first if none is."""
    if padding is None:
        return inputs.last_tokens
    counts = (inputs.input_ids != padding).cumsum()
    xp = kernels.array_module(counts)
    return xp.maximum(xp.searchsorted(counts, counts[inputs.last_tokens]), inputs.first_tokens)
