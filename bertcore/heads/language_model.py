"""The language model's head: a score for every word of the vocabulary at every token."""

from dataclasses import dataclass
from typing import Any

from bertcore.execution import Pass
from bertcore.nn import functional
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.tape import Variable, value_of


@dataclass(frozen=True)
class LanguageModelSpec:
    """A family's names of the head's parts, without ".weight" and ".bias", and what it varies.

    Attributes:
        decoder: of the map onto the vocabulary.
        tied_bias: the full name of the decoder's bias where the decoder is tied to the word embeddings. None for a
            decoder without a bias.
        untied_bias: the full name of an untied decoder's bias; `decoder` and ".bias" by default.
        transform, transform_norm: of the map before it and its layer norm; None where there are none.
        activation: of the transform.
        rest: of a second map onto the vocabulary, stored (features, vocabulary), where the word embeddings are narrower
            than the transform: of its features beyond theirs (MobileBERT).
        without_bias: which of "transform" and "transform_norm" have no bias.
        predicts_next: the scores of a token are those of the word after it (GPT-2), not of its own.
    """

    decoder: str
    tied_bias: str | None
    transform: str | None = None
    transform_norm: str | None = None
    activation: str | None = None
    untied_bias: str | None = None
    rest: str | None = None
    without_bias: frozenset[str] = frozenset()
    predicts_next: bool = False


class LanguageModelHead(Block):
    """decoder(LayerNorm(activation(linear(hidden)))) (Devlin et al. 2018, section 3.1), or the decoder alone.

    The decoder's weight is the table of word embeddings, unless the config unties them; the decoder then has a name,
    and a bias, of its own, as in transformers.
    """

    def __init__(self, head_spec: LanguageModelSpec, spec: EncoderSpec, word_embeddings: Parameter):
        width, vocabulary = spec.hidden_size, spec.vocab_size
        self.transform = self.norm = None
        if head_spec.transform is not None:
            width = spec.embedding_size
            transformed = width if head_spec.rest is None else spec.hidden_size
            biased = {"transform", "transform_norm"} - head_spec.without_bias
            sizes = {"in_features": spec.hidden_size, "out_features": transformed}
            self.transform = Linear(
                head_spec.transform, **sizes, activation=head_spec.activation, bias="transform" in biased
            )
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

    def __call__(self, run: Pass, hidden: Any) -> Any:
        """(tokens, hidden) -> logits (tokens, vocabulary)."""
        hidden, rest = self._transformed(run, hidden), None
        if self.rest is not None:
            beyond = value_of(hidden).shape[1]
            if beyond > self.width:
                rest = self.rest(run, functional.slice_columns(run, hidden, first=self.width, last=beyond))
            hidden = functional.slice_columns(run, hidden, first=0, last=self.width)
        return functional.linear(
            run, hidden, self.decoder.weight(run), None if self.bias is None else self.bias.value(run), rest
        )

    def loss_in_chunks(self, run: Pass, hidden: Any, labels: Any) -> Any:
        """Return the mean cross entropy of the logits of (tokens, hidden), computed chunk by chunk.

        All tokens have a label.
        """
        weight, bias = self.decoder.weight(run), None if self.bias is None else self.bias.value(run)
        options = {"labels": labels, "needs_weight": type(weight) is Variable}
        return functional.decoded_cross_entropy(run, self._transformed(run, hidden), weight, bias, **options)

    @property
    def can_go_in_chunks(self) -> bool:
        """True if `loss_in_chunks` can be called: the decoder is one map, without an adapter."""
        return self.rest is None and self.decoder.adapter is None

    def _transformed(self, run: Pass, hidden: Any) -> Any:
        return hidden if self.transform is None else self.norm(run, self.transform(run, hidden))
