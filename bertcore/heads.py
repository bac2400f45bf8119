"""Heads for language models, span boundaries, and classification of sequences, tokens and choices."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.functional.losses import IGNORED
from bertcore.nn.layers import Embedding, LayerNorm, Linear, drop
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, Variable, value_of

SOURCES = ("pooler", "first", "last", "last_word", "mean", "mean_of_dense", "tokens", "tokens_and_first", "entities")


@dataclass(frozen=True)
class ClassifierSpec:
    """A family's classifier; parts have their names in checkpoints, without ".weight" and ".bias"."""

    output: str  # the last linear map
    # the encoder's "pooler"; the hidden state of the "first" or "last" token, or of the "last_word" (the last token
    # except padding); the "mean" of all tokens; "mean_of_dense", the mean after `dense`; each of the "tokens", or each
    # plus the first one ("tokens_and_first"); "entities" (a family's own head)
    source: str
    _: KW_ONLY
    dense: str | None = None  # a linear map before `output`, of the hidden size
    activation: str | None = None  # applied after `dense`, or to the source if there is no `dense`
    norm: str | None = None  # a layer norm after the activation, or with norm_first before `dense`
    norm_first: bool = False
    without_bias: frozenset[str] = frozenset()  # those of "dense", "norm" and "output" that have no bias
    # dropout rates of the inputs of `output` and `dense`; None for the config's classifier dropout (0 for
    # dense_dropout if there is no `dense`)
    dropout: float | None = None
    dense_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source is {self.source!r}, known are {', '.join(SOURCES)}")


class Classifier(Block):
    """output(norm(activation(dense(source)))), or output(activation(dense(norm(source)))), with `num_labels` scores.

    Missing parts are left out.
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

    def __call__(self, encoded: Any) -> Tensor:
        """Return logits of an `Encoded` batch: (tokens, num_labels), or (sequences that have tokens, num_labels)."""
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
        run, inputs = encoded.run, encoded.inputs
        if self.source == "pooler":
            return encoded.pooled
        if self.source == "first":
            return functional.take_rows(run, encoded.hidden, rows=inputs.first_tokens)
        if self.source in ("last", "last_word"):
            rows = inputs.last_tokens if self.source == "last" else _last_words(inputs, self.padding)
            return functional.take_rows(run, encoded.hidden, rows=rows)
        if self.source == "mean":
            return _mean(run, encoded.hidden, encoded.packed)
        if self.source == "tokens_and_first":
            packed = encoded.packed  # for each token, the index of its sequence's first token
            rows = run.to_backend(np.repeat(packed.first_tokens(), packed.lengths[packed.has_tokens]))
            return functional.add(run, encoded.hidden, functional.take_rows(run, encoded.hidden, rows=rows))
        return encoded.hidden


def _mean(run: Pass, hidden: Tensor, packed: PackedBatch) -> Tensor:
    """Return the mean of each sequence's real tokens, (sequences that have tokens, features)."""
    rows, cu_seqlens = packed.real_tokens()
    if rows is not None:
        hidden = functional.take_rows(run, hidden, rows=run.to_backend(rows))
    return functional.average_sequences(run, hidden, cu_seqlens=cu_seqlens)


def _last_words(inputs: Any, padding: int | None) -> NativeArray:
    """Return the packed index of each sequence's last token that differs from `padding`, or of its first token."""
    if padding is None:
        return inputs.last_tokens
    counts = (inputs.input_ids != padding).cumsum()
    xp = kernels.array_module(counts)
    return xp.maximum(xp.searchsorted(counts, counts[inputs.last_tokens]), inputs.first_tokens)


@dataclass(frozen=True)
class LanguageModelSpec:
    """A family's language-model head; parts have their names without ".weight" and ".bias", None if missing."""

    decoder: str  # the linear map to the vocabulary
    # the full name of the bias of a decoder tied to the word embeddings; None for a decoder without a bias
    tied_bias: str | None
    transform: str | None = None  # the linear map before the decoder
    transform_norm: str | None = None
    activation: str | None = None  # of the transform
    before: str | None = None  # a linear map before the transform, with the same activation
    before_size: int = 0
    untied_bias: str | None = None  # the full name of an untied decoder's bias; `decoder` and ".bias" by default
    # a second map to the vocabulary, stored as (features, vocabulary), for the transform's features beyond the width of
    # the word embeddings (MobileBERT)
    rest: str | None = None
    # those of "transform" (which includes `before`) and "transform_norm" that have no bias
    without_bias: frozenset[str] = frozenset()
    predicts_next: bool = False  # a token's scores predict the next token (GPT-2), not the token itself


class LanguageModelHead(Block):
    """decoder(LayerNorm(activation(linear(hidden)))) (Devlin et al. 2018, section 3.1), or the decoder alone.

    The decoder's weight is the word-embedding table, unless the config unties them; an untied decoder has its own name
    and bias, as in transformers.
    """

    def __init__(self, head_spec: LanguageModelSpec, spec: EncoderSpec, word_embeddings: Parameter):
        width, vocabulary = spec.hidden_size, spec.vocab_size
        self.before = self.transform = self.norm = None
        if head_spec.transform is not None:
            width = spec.summed_size
            transformed = width if head_spec.rest is None else spec.hidden_size
            biased = {"transform", "transform_norm"} - head_spec.without_bias
            how, inner = {"activation": head_spec.activation, "bias": "transform" in biased}, spec.hidden_size
            if head_spec.before is not None:
                self.before = Linear(head_spec.before, in_features=inner, out_features=head_spec.before_size, **how)
                inner = head_spec.before_size
            self.transform = Linear(head_spec.transform, in_features=inner, out_features=transformed, **how)
            if head_spec.transform_norm is not None:
                sizes = {"features": transformed, "eps": spec.layer_norm_eps}
                self.norm = LayerNorm(head_spec.transform_norm, **sizes, bias="transform_norm" in biased)
        if spec.tied_decoder:
            self.decoder, bias_name = word_embeddings.used_as("weight"), head_spec.tied_bias
        else:
            self.decoder = Parameter(f"{head_spec.decoder}.weight", shape=(vocabulary, width), use="weight")
            bias_name = head_spec.tied_bias and (head_spec.untied_bias or f"{head_spec.decoder}.bias")
        self.bias = None if bias_name is None else Parameter(bias_name, shape=(vocabulary,), initial="zeros")
        self.width, self.rest = width, None
        if head_spec.rest is not None:
            sizes = {"in_features": spec.hidden_size - width, "out_features": vocabulary}
            self.rest = Linear(head_spec.rest, **sizes, bias=False, is_transposed=True)

    def __call__(self, run: Pass, hidden: Tensor) -> Tensor:
        """Return logits, (tokens, vocabulary), of hidden states, (tokens, hidden)."""
        hidden, rest = self._transformed(run, hidden), None
        if self.rest is not None:
            beyond = value_of(hidden).shape[1]
            if beyond > self.width:
                rest = self.rest(run, functional.slice_columns(run, hidden, first=self.width, last=beyond))
            hidden = functional.slice_columns(run, hidden, first=0, last=self.width)
        bias = None if self.bias is None else self.bias.value(run)
        return functional.linear(run, hidden, self.decoder.weight(run), bias, rest)

    def among(self, run: Pass, hidden: Tensor, words: NativeArray) -> Tensor:
        """Return the logits of only the words with these ids, (tokens, words)."""
        weight = functional.take_rows(run, self.decoder.value(run), rows=words)
        bias = self.bias and functional.reshape(run, self.bias.value(run), shape=(-1, 1))
        bias = bias if bias is None else functional.take_rows(run, bias, rows=words)
        bias = bias if bias is None else functional.reshape(run, bias, shape=(-1,))
        return functional.linear(run, self._transformed(run, hidden), weight, bias)

    def loss_in_chunks(self, run: Pass, hidden: Tensor, labels: NativeArray) -> Tensor:
        """Return the mean cross entropy of the logits of hidden states, (tokens, hidden), computed in chunks.

        Every token has a label. The decoder must be one linear map without an adapter.
        """
        weight, bias = self.decoder.weight(run), None if self.bias is None else self.bias.value(run)
        options = {"labels": labels, "needs_weight": type(weight) is Variable}
        return functional.decoded_cross_entropy(run, self._transformed(run, hidden), weight, bias, **options)

    def _transformed(self, run: Pass, hidden: Tensor) -> Tensor:
        if self.transform is None:
            return hidden
        hidden = self.transform(run, hidden if self.before is None else self.before(run, hidden))
        return hidden if self.norm is None else self.norm(run, hidden)


@dataclass(frozen=True)
class SpanBoundarySpec:
    """The prefix of the parameters' names (transformers has no such head), and the sizes.

    The defaults are from the authors' code (facebookresearch/SpanBERT, fairseq/models/pair_bert.py). `positions` is the
    number of positions in a span that have an embedding (later tokens are not predicted), `position_size` its width.
    """

    name: str = "span_boundary"
    positions: int = 20
    position_size: int = 200


class Boundaries(NamedTuple):
    """Predicted masked tokens, the last token before their span, the first after it, and their positions in it.

    All are integers (predictions,) in host memory; positions count from 0.
    """

    rows: np.ndarray
    left: np.ndarray
    right: np.ndarray
    places: np.ndarray


def find_boundaries(labels: np.ndarray, cu_seqlens: np.ndarray, most: int) -> Boundaries:
    """Return the boundaries of spans of consecutive labelled tokens.

    Adjacent spans count as one, as a boundary is a token without a label. A span at the start or end of its sequence
    lacks a boundary and is left out, and so are tokens beyond a span's first `most`. `labels` are (tokens,), -100 for
    no label.
    """
    is_masked, tokens = labels != IGNORED, np.arange(len(labels))
    left = np.maximum.accumulate(np.where(is_masked, -1, tokens))
    right = np.minimum.accumulate(np.where(is_masked, len(labels), tokens)[::-1])[::-1]
    sequence = np.searchsorted(cu_seqlens, tokens, side="right") - 1
    starts, ends = cu_seqlens[sequence], cu_seqlens[sequence + 1]
    rows = np.flatnonzero(is_masked & (left >= starts) & (right < ends) & (tokens - left <= most))
    return Boundaries(rows, left[rows], right[rows], rows - left[rows] - 1)


class SpanBoundaryHead(Block):
    """Scores of the words of masked spans (Joshi et al. 2020, arXiv:1907.10529, section 3.2).

    h0 = [x_(s-1); x_(e+1); p_(i-s+1)], h1 = LayerNorm(GELU(linear(h0))), h2 = LayerNorm(GELU(linear(h1))), and the
    scores are h2 times the transposed word embeddings, plus a bias.
    """

    def __init__(self, head_spec: SpanBoundarySpec, spec: EncoderSpec, word_embeddings: Parameter):
        name, width, self.most = head_spec.name, spec.embedding_size, head_spec.positions
        position = {"rows": head_spec.positions, "features": head_spec.position_size}
        self.places, self.dense, self.norms = Embedding(f"{name}.position_embeddings", **position), [], []
        for index, size in enumerate((2 * spec.hidden_size + head_spec.position_size, width)):
            sizes, norm = {"in_features": size, "out_features": width}, f"{name}.layer.{index}.LayerNorm"
            self.dense.append(Linear(f"{name}.layer.{index}.dense", **sizes, activation="gelu"))
            self.norms.append(LayerNorm(norm, features=width, eps=spec.layer_norm_eps))
        self.decoder = word_embeddings.used_as("weight")
        self.bias = Parameter(f"{name}.bias", shape=(spec.vocab_size,), initial="zeros")

    def __call__(self, run: Pass, hidden: Tensor, left: Tensor, right: Tensor, places: NativeArray) -> Tensor:
        """Return logits, (predictions, vocabulary), of hidden states and of `Boundaries` on the same device."""
        beside = (functional.take_rows(run, hidden, rows=rows) for rows in (left, right))
        features = functional.concatenate(run, *beside, self.places(run, places), axis=1)
        for dense, norm in zip(self.dense, self.norms, strict=True):
            features = norm(run, dense(run, features))
        return functional.linear(run, features, self.decoder.weight(run), self.bias.value(run))
