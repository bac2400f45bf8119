"""The classifying heads: scores for a sequence, or for each of its tokens."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn import functional
from bertcore.nn.layers import LayerNorm, Linear, drop
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

SOURCES = ("pooler", "first", "last", "last_word", "mean", "mean_of_dense", "tokens", "tokens_and_first", "entities")


@dataclass(frozen=True)
class ClassifierSpec:
    """The parts of a family's classifier.

    Attributes:
        output: the name of the last map, without ".weight" and ".bias".
        source: what it classifies: a sequence by the encoder's "pooler", by the hidden state of its "first" or "last"
            token, of the "last_word", which is not the word that pads, or by their "mean"; or each of its "tokens", or
            of these plus the first one ("tokens_and_first"); or "entities" (a family's own head). "mean_of_dense" is
            the mean of what `dense` makes of each token.
        dense: the name of a map before the last one, of the hidden size, or None.
        activation: after `dense`, or on the source itself without one.
        norm: the name of a layer norm after the activation, or None.
        norm_first: whether that norm is applied to the source instead.
        without_bias: which of "dense", "norm" and "output" have no bias.
        dropout, dense_dropout: the rates at which, in training, what the last map is given is dropped, and what `dense`
            is given, or would be; None for that of the config's classifiers, and for 0 where there is no `dense`.
    """

    output: str
    source: str
    _: KW_ONLY
    dense: str | None = None
    activation: str | None = None
    norm: str | None = None
    norm_first: bool = False
    without_bias: frozenset[str] = frozenset()
    dropout: float | None = None
    dense_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source is {self.source!r}, known are {', '.join(SOURCES)}")


class Classifier(Block):
    """output(norm(activation(dense(source)))), or output(activation(dense(norm(source)))), with `num_labels` scores.

    Parts that the spec lacks are left out.
    """

    def __init__(self, head_spec: ClassifierSpec, spec: EncoderSpec, num_labels: int):
        width, biased = spec.hidden_size, {"dense", "norm", "output"} - head_spec.without_bias
        self.source, self.padding, self.norm_first = head_spec.source, spec.pad_token_id, head_spec.norm_first
        self.activation = head_spec.activation if head_spec.dense is None else None
        rate, dense_rate = head_spec.dropout, head_spec.dense_dropout
        self.dropout = spec.classifier_dropout if rate is None else rate
        usual = 0.0 if head_spec.dense is None else spec.classifier_dropout
        self.dense_dropout = usual if dense_rate is None else dense_rate
        self.dense = self.norm = None
        if head_spec.dense is not None:
            sizes = {"in_features": width, "out_features": width}
            self.dense = Linear(head_spec.dense, **sizes, activation=head_spec.activation, bias="dense" in biased)
        if head_spec.norm is not None:
            self.norm = LayerNorm(head_spec.norm, features=width, eps=spec.layer_norm_eps, bias="norm" in biased)
        self.output = Linear(head_spec.output, in_features=width, out_features=num_labels, bias="output" in biased)

    def __call__(self, encoded: Any) -> Any:
        """An `Encoded` batch -> logits, (tokens, num_labels), or (sequences that have tokens, num_labels)."""
        features, run = self._features(encoded), encoded.run
        if self.norm_first:
            features = self.norm(run, features)
        features = drop(run, features, self.dense_dropout)
        if self.dense is not None:
            features = self.dense(run, features)
        if self.activation is not None:
            features = functional.activation(run, features, activation=self.activation)
        if self.norm is not None and not self.norm_first:
            features = self.norm(run, features)
        if self.source == "mean_of_dense":
            features = _mean(run, features, encoded.packed)
        return self.output(run, drop(run, features, self.dropout))

    def _features(self, encoded: Any) -> Tensor:
        run = encoded.run
        if self.source == "pooler":
            return encoded.pooled
        if self.source == "first":
            return functional.take_rows(run, encoded.hidden, rows=encoded.inputs.first_tokens)
        if self.source == "last":
            return functional.take_rows(run, encoded.hidden, rows=encoded.inputs.last_tokens)
        if self.source == "last_word":
            return functional.take_rows(run, encoded.hidden, rows=_last_words(encoded.inputs, self.padding))
        if self.source == "mean":
            return _mean(run, encoded.hidden, encoded.packed)
        if self.source == "tokens_and_first":
            return functional.add(
                run, encoded.hidden, functional.take_rows(run, encoded.hidden, rows=_first_of_each(encoded))
            )
        return encoded.hidden


def _mean(run: Pass, hidden: Any, packed: PackedBatch) -> Any:
    """Return the mean of each sequence's real tokens, (sequences that have tokens, features)."""
    rows, cu_seqlens = packed.real_tokens()
    if rows is not None:
        hidden = functional.take_rows(run, hidden, rows=run.to_backend(rows))
    return functional.average_sequences(run, hidden, cu_seqlens=cu_seqlens)


def _first_of_each(encoded: Any) -> Any:
    """Return for each packed token the index of the first token of its sequence, (tokens,)."""
    packed = encoded.packed
    return encoded.run.to_backend(np.repeat(packed.first_tokens(), packed.lengths[packed.has_tokens]))


def _last_words(inputs: Any, padding: int | None) -> Any:
    """Return the packed index of each sequence's last token that differs from `padding`, or of its first token."""
    if padding is None:
        return inputs.last_tokens
    counts = (inputs.input_ids != padding).cumsum()
    xp = kernels.array_module(counts)
    return xp.maximum(xp.searchsorted(counts, counts[inputs.last_tokens]), inputs.first_tokens)
