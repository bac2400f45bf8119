"""The head of the span boundary objective: each word of a masked span from the two tokens beside the span."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore.execution import Pass
from bertcore.nn import functional
from bertcore.nn.functional.losses import IGNORED
from bertcore.nn.layers import Embedding, LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec


@dataclass(frozen=True)
class SpanBoundarySpec:
    """The head's name in a checkpoint, and its sizes.

    The defaults are those of the authors' code (facebookresearch/SpanBERT, fairseq/models/pair_bert.py).

    Attributes:
        name: how the names of its parameters begin, without the dot. transformers has no such head.
        positions: how many places in a span have an embedding; later ones are not predicted.
        position_size: the width of these embeddings.
    """

    name: str = "span_boundary"
    positions: int = 20
    position_size: int = 200


class Boundaries(NamedTuple):
    """The masked tokens that are predicted, and what from: integers (predictions,) in host memory.

    Attributes:
        rows: the tokens themselves.
        left, right: the last token before the span and the first one after it.
        places: the token's place in its span, from 0 on.
    """

    rows: np.ndarray
    left: np.ndarray
    right: np.ndarray
    places: np.ndarray


def find_boundaries(labels: np.ndarray, cu_seqlens: np.ndarray, most: int) -> Boundaries:
    """The boundaries of the spans of labelled tokens that stand side by side.

    Spans that touch are one: a boundary is a token that is not masked. A span at the end of its sequence lacks one and
    is left out, and so are the tokens of a span beyond the first `most`.

    Args:
        labels: (tokens,), -100 for no label.
        cu_seqlens: offsets of the sequences, (sequences + 1,).
        most: the number of tokens of a span that are kept.
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
    scores are the products of h2 with the word embeddings, plus a bias.
    """

    def __init__(self, head_spec: SpanBoundarySpec, spec: EncoderSpec, word_embeddings: Parameter):
        name, width, self.most = head_spec.name, spec.embedding_size, head_spec.positions
        inputs = 2 * spec.hidden_size + head_spec.position_size
        self.places = Embedding(
            f"{name}.position_embeddings", rows=head_spec.positions, features=head_spec.position_size
        )
        sizes = (inputs, width)
        self.dense = [
            Linear(f"{name}.layer.{index}.dense", in_features=size, out_features=width, activation="gelu")
            for index, size in enumerate(sizes)
        ]
        self.norms = [
            LayerNorm(f"{name}.layer.{index}.LayerNorm", features=width, eps=spec.layer_norm_eps)
            for index in range(len(sizes))
        ]
        self.decoder = word_embeddings.used_as("weight")
        self.bias = Parameter(f"{name}.bias", shape=(spec.vocab_size,), initial="zeros")

    def __call__(self, run: Pass, hidden: Any, left: Any, right: Any, places: Any) -> Any:
        """Hidden states, (tokens, hidden), and `Boundaries` in their memory -> logits, (predictions, vocabulary)."""
        beside = (functional.take_rows(run, hidden, rows=rows) for rows in (left, right))
        features = functional.concatenate(run, *beside, self.places(run, places), axis=1)
        for dense, norm in zip(self.dense, self.norms, strict=True):
            features = norm(run, dense(run, features))
        return functional.linear(run, features, self.decoder.weight(run), self.bias.value(run))
