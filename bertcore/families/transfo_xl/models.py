"""Transformer-XL's language model, whose loss needs few of the words' scores."""

from typing import Any

from bertcore.families.transfo_xl.adaptive_softmax import AdaptiveSoftmax, AdaptiveSoftmaxSpec
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForCausalLM
from bertcore.models.outputs import LogitsOutput
from bertcore.nn.parameter import Block


class AdaptiveCausalLM(AutoModelForCausalLM):
    """AutoModelForCausalLM with an adaptive softmax: logits are logarithms of probabilities. Labels are compared with
    what the token before each predicts; with labels no logits are returned, since the loss needs few of them."""

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
