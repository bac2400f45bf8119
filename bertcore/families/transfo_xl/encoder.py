"""Transformer-XL's encoder, and its language model, whose loss needs few of the words' scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.families.transfo_xl.adaptive_softmax import AdaptiveSoftmax, AdaptiveSoftmaxSpec
from bertcore.families.transfo_xl.blocks import PositionBiases, RecurrentLayer
from bertcore.families.transfo_xl.recurrent import RecurrentEncoder
from bertcore.models import losses
from bertcore.models.auto import AutoModelForCausalLM
from bertcore.models.encoder import EncoderInput, Trace
from bertcore.models.model import Encoded
from bertcore.models.outputs import LogitsOutput
from bertcore.models.registry import Family
from bertcore.nn.encoder import LayerContext
from bertcore.nn.parameter import Block


@dataclass(frozen=True)
class RecurrentDetails:
    """What Transformer-XL's configs vary; see `RecurrentEncoder`.

    Attributes:
        groups: (first word, end) of the groups of words that embeddings and softmax make.
        div_val: by how much the embeddings of a group are narrower than those of the one before.
        is_pre_norm: layer norms come before attention and feed-forward.
        own_biases: each layer has position biases of its own.
    """

    head_dim: int
    memory_length: int
    clamp_length: int
    same_length: bool
    groups: tuple[tuple[int, int], ...]
    div_val: int
    is_pre_norm: bool
    own_biases: bool
    is_causal: bool = True

    @property
    def returns_memory(self) -> bool:
        """There is one unless it has no length."""
        return self.memory_length > 0

    trains_with_memory = returns_memory


class CausalRecurrentEncoder(RecurrentEncoder):
    """The encoder of Dai et al. 2019 (arXiv:1901.02860): each token sees those before it, and the memory.

    Without `mems` there is no memory, as in the paper. (transformers once began with mem_len vectors of zeros, which
    are seen, too: give those as `mems` for its results.) With same_length a token sees as many tokens as the memory
    has.
    """

    biases: PositionBiases | None = None

    def _layer(self, family: Family, names: Mapping[str, str]) -> Block:
        if self.spec.details.own_biases:
            return RecurrentLayer(names, self.spec, PositionBiases(names, self.spec))
        if self.biases is None:
            prefix = names["qkv"].partition("layers.")[0]
            shared = {part: prefix + family.encoder_names[part] for part in ("content_bias", "position_bias")}
            self.biases = PositionBiases(shared, self.spec)
        return RecurrentLayer(names, self.spec, self.biases)

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        hidden = self.embeddings(inputs)
        memories, given = self._memories(inputs, hidden), []
        relations, longest, before = self._relations(inputs, hidden, memories[0])
        visible = kernels.to_backend(self._visible(inputs, longest, before)[:, None])
        context = LayerContext(inputs.cu_seqlens, visible, trace.attentions, relations)
        for layer, memory in zip(self.layers, memories, strict=True):
            given.append(hidden)
            trace.hidden(hidden)
            hidden = layer(hidden, memory, context)
        trace.hidden(hidden)
        if "returns_memory" in inputs.extras:
            trace.extras["layer_inputs"] = given
        return hidden

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        return memory - ahead < self.spec.details.memory_length


class AdaptiveCausalLM(AutoModelForCausalLM):
    """AutoModelForCausalLM with an adaptive softmax: logits are logarithms of probabilities, and with labels, of which
    each is compared with what the token before it predicts, there are none: the loss needs few of them."""

    def _head(self, task: str, spec: AdaptiveSoftmaxSpec) -> Block:
        return AdaptiveSoftmax(spec, self.spec, self.encoder.embeddings)

    def _output(self, encoded: Encoded, labels: Any = None) -> LogitsOutput:
        head = self.heads[0]
        if labels is None:
            return LogitsOutput(logits=encoded.packed.pad(head(encoded.hidden)), **encoded.traced)
        words = losses.next_words(encoded.packed, labels, self.spec.vocab_size)
        return LogitsOutput(loss=head.loss(encoded.hidden, words), **encoded.traced)
