"""The encoder of families whose attention is by content and by relative position (DeBERTa)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.families.deberta.blocks import RelativeEmbeddings, RelativePositions, real_tokens
from bertcore.families.deberta_v2.convolution import Convolution
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.outputs import AttentionComponents
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn.encoder import LayerContext
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block

COMPONENTS = "output_attention_components"


class DisentangledEncoder(Encoder):
    """An encoder whose layers share the relative embeddings; a convolution may stand beside the first one.

    Calls take `output_attention_components`: whether to return the terms of the scores, too.
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        super().__init__(family, spec, prefix=prefix, pooler=pooler)
        names = {part: prefix + name for part, name in family.encoder_names.items()}
        self.relative = RelativeEmbeddings(names, spec)
        if spec.details.convolution is not None:
            self.layers[0] = _ConvolutedLayer(self.layers[0], Convolution(names, spec))

    def forget_recordings(self) -> None:
        super().forget_recordings()
        for layer in self.layers:
            layer.attention.forget_constants()

    def own_inputs(self, packed: PackedBatch, *, output_attention_components: bool = False) -> Mapping[str, Any]:
        return {COMPONENTS: []} if output_attention_components else {}

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        hidden, components = self.embeddings(inputs), inputs.extras.get(COMPONENTS)
        return self._through_layers(hidden, inputs.cu_seqlens, inputs.key_mask, trace, components)

    def _context(self, context: LayerContext) -> LayerContext:
        """With what the layers share; a token that is not to be seen sees nothing, either."""
        is_real, mask = None, context.key_mask
        if mask is not None:
            is_real, mask = real_tokens(mask, context.cu_seqlens), _pair_mask(mask)
        return replace(context, key_mask=mask, shared=RelativePositions(self.relative, is_real, context.shared))

    def traced(self, packed: PackedBatch, inputs: EncoderInput, trace: Trace) -> dict[str, tuple | None]:
        outputs, components = super().traced(packed, inputs, trace), inputs.extras.get(COMPONENTS)
        if components is None:
            return outputs
        seen = None if inputs.key_mask is None else _pair_mask(inputs.key_mask)
        padded = (
            (None if term is None else packed.pad_attention(term if seen is None else term * seen) for term in layer)
            for layer in components
        )
        return outputs | {"attention_components": tuple(AttentionComponents(*layer) for layer in padded)}


class _ConvolutedLayer(Block):
    """The first layer with a convolution beside it: both have the embeddings as their input."""

    def __init__(self, layer: Any, convolution: Convolution):
        self.layer, self.convolution = layer, convolution

    @property
    def attention(self) -> Block:
        return self.layer.attention

    def __call__(self, hidden: Any, context: LayerContext) -> Any:
        """(tokens, hidden) -> (tokens, hidden)."""
        encoded = self.layer(hidden, context)
        return self.convolution(hidden, encoded, context.cu_seqlens, context.shared.is_real)


def _pair_mask(key_mask: Any) -> Any:
    """Which token sees which, (sequences, 1, longest, longest), from a mask (sequences, 1, 1, longest)."""
    return key_mask & key_mask.transpose(0, 1, 3, 2)
