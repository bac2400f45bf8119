"""DeBERTa's adapter: relative embeddings for all layers, and the components of the scores on request."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertcore.execution import Pass
from bertcore.families.deberta.blocks import DisentangledContext, PositionsOfPass, RelativeEmbeddings, real_tokens
from bertcore.families.deberta.operations import padding_of_sequences
from bertcore.models.adapter import Adapter, Encoded
from bertcore.models.inputs import EncoderInput
from bertcore.nn.spec import EncoderSpec
from bertcore.tape import Tensor

COMPONENTS = "output_attention_components"


class AttentionComponents(NamedTuple):
    """The terms that a layer's attention scores are the sum of (He et al. 2021, arXiv:2006.03654, equation 2).

    Each is (sequences, heads, length, length), scaled as the scores are, with zeros where either token is padding; None
    where the model has no such term.
    """

    content_to_content: Any
    content_to_position: Any
    position_to_content: Any


@dataclass(kw_only=True)
class ComponentsInput(EncoderInput):
    """Attributes:
    components: a list to which each layer appends the terms of its scores.
    """

    components: list
    is_plain = False


class DisentangledAdapter(Adapter):
    """Calls take `output_attention_components`: whether to return the terms of the scores, too."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.relative = RelativeEmbeddings(names, spec)

    def pack(self, run: Pass, *given: Any, output_attention_components: bool = False, **options: Any) -> EncoderInput:
        inputs = super().pack(run, *given, **options)
        return ComponentsInput(**vars(inputs), components=[]) if output_attention_components else inputs

    def reads_on_host(self, run: Pass) -> Collection[str]:
        """In training positions are mapped for the longest sequence."""
        return () if run.tape is None else ("longest",)

    def begin(
        self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]
    ) -> tuple[Tensor, DisentangledContext]:
        """The embeddings, and what all layers share."""
        return embeddings(run, inputs), self.context(run, inputs)

    def context(self, run: Pass, inputs: EncoderInput) -> DisentangledContext:
        """What all layers share. Padding neither sees nor is seen."""
        is_real, padding, mask, packed = None, [], inputs.key_mask, inputs.packed
        if mask is not None:
            is_real, mask = real_tokens(run, inputs), _pair_mask(mask)
            padding = padding_of_sequences(packed.strip(packed.is_real), packed.cu_seqlens)
        positions = PositionsOfPass(
            run, self.relative, inputs.longest, is_real, padding, getattr(inputs, "components", None)
        )
        return DisentangledContext(inputs.cu_seqlens, mask, positions=positions)

    def restore(self, run: Pass, inputs: EncoderInput, state: Tensor) -> Encoded:
        """Outputs have attention_components: on request the AttentionComponents of each layer, else None."""
        encoded, components = super().restore(run, inputs, state), None
        if isinstance(inputs, ComponentsInput):
            seen = 1 if inputs.key_mask is None else _pair_mask(inputs.key_mask)
            pad = inputs.packed.pad_attention
            components = tuple(
                AttentionComponents(*(None if term is None else pad(run, term * seen) for term in layer))
                for layer in inputs.components
            )
        encoded.traced["attention_components"] = components
        return encoded


def _pair_mask(key_mask: Any) -> Any:
    """Which token sees which, (sequences, 1, longest, longest), from a mask (sequences, 1, 1, longest)."""
    return key_mask & key_mask.transpose(0, 1, 3, 2)
