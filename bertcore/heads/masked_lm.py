"""The masked language model's head: a score for every word of the vocabulary at every token."""

from collections.abc import Mapping
from typing import Any

from bertcore.nn import functional
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter


class MaskedLMHead(Block):
    """decoder(LayerNorm(activation(linear(hidden)))) (Devlin et al. 2018, section 3.1).

    The decoder's weight is the table of word embeddings, unless the config unties them; the decoder then has a name,
    and a bias, of its own, as in transformers.
    """

    def __init__(self, names: Mapping[str, str], spec: Any, word_embeddings: Parameter):
        width, vocabulary = spec.hidden_size, spec.vocab_size
        self.transform = Linear(names["transform"], in_features=width, out_features=width, activation=spec.activation)
        self.norm = LayerNorm(names["transform_norm"], features=width, eps=spec.layer_norm_eps)
        if spec.tied_decoder:
            self.decoder, bias_name = word_embeddings, names["decoder_bias"]
            self.decoder.uses.add("weight")
        else:
            self.decoder = Parameter(f"{names['decoder']}.weight", shape=(vocabulary, width), use="weight")
            bias_name = f"{names['decoder']}.bias"
        self.decoder_bias = Parameter(bias_name, shape=(vocabulary,), initial="zeros")

    def __call__(self, hidden: Any) -> Any:
        """(tokens, hidden) -> logits (tokens, vocabulary)."""
        return functional.linear(self.norm(self.transform(hidden)), self.decoder.weight, self.decoder_bias.value)
