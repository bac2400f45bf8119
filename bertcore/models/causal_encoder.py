"""The encoder of families whose tokens see those before them only (GPT-2): layers, then one last norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore import kernels
from bertcore.models import losses
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn import functional
from bertcore.nn.causal_attention import PreNormLayer
from bertcore.nn.key_value_cache import KeyValueCache
from bertcore.nn.layers import LayerNorm
from bertcore.nn.parameter import Block


@dataclass(frozen=True)
class CausalDetails:
    """What GPT-2 alone varies.

    Attributes:
        scales_by_size: whether scores are divided by sqrt(head_dim).
        scales_by_layer: whether they are divided by the layer's number, from 1 on, too.
    """

    scales_by_size: bool = True
    scales_by_layer: bool = False

    def scale(self, layer: int, head_dim: int) -> float:
        """The factor of the scores in `layer`, counted from 0."""
        return (head_dim**-0.5 if self.scales_by_size else 1.0) / (layer + 1 if self.scales_by_layer else 1)


class CausalEncoder(Encoder):
    """Embeddings, causal layers, and a layer norm after the last one."""

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        super().__init__(family, spec, prefix=prefix, pooler=pooler)
        for index, layer in enumerate(self.layers):
            layer.attention.index = index
            layer.attention.scale = spec.details.scale(index, spec.hidden_size // spec.num_heads)
        name = prefix + family.encoder_names["final_norm"]
        self.final_norm = LayerNorm(name, features=spec.hidden_size, eps=spec.layer_norm_eps)

    def _layer(self, family: Family, names: Mapping[str, str]) -> Block:
        return PreNormLayer(names, self.spec)

    def _run_layers(
        self, hidden: Any, cu_seqlens: Any, key_mask: Any = None, trace: Trace | None = None, shared: Any = None
    ) -> Any:
        hidden = self.final_norm(super()._run_layers(hidden, cu_seqlens, key_mask, trace, shared))
        if trace is not None and trace.hidden_states is not None:
            trace.hidden_states[-1] = hidden  # transformers shows the last one after its norm
        return hidden

    def extend(self, inputs: EncoderInput, cache: KeyValueCache) -> Any:
        """The last hidden state of tokens that follow those in `cache`, (tokens, hidden); they are added to it."""
        return self._through_layers(self.embeddings(inputs), inputs.cu_seqlens, None, Trace(), cache)

    def causal_loss(self, logits: Any, labels: Any, encoded: Any) -> Any:
        """The mean cross entropy of each word, of `labels` (sequences, length), given the real tokens before it.

        A label of a sequence's first token counts for nothing, and -100 stands for none.
        """
        following = losses.next_words(encoded.packed, labels, self.spec.vocab_size)
        return functional.cross_entropy(logits, labels=kernels.to_backend(following))
