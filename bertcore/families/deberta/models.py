"""DeBERTa's adapter and its masked language model, with the enhanced mask decoder on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bertcore.families.deberta.blocks import DisentangledContext, PositionsOfPass, RelativeEmbeddings, real_tokens
from bertcore.families.deberta.operations import padding_of_sequences
from bertcore.models.adapter import Adapter, Encoded
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.inputs import EncoderInput
from bertcore.models.spec import MOST_POSITIONS, ConfigReader
from bertcore.nn import functional
from bertcore.nn.layers import Embedding
from bertcore.nn.packing import PackedBatch
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass, Trace
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
    """Inputs with a list for the terms of scores.

    Attributes:
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
        """Return the context that all layers share; padding neither attends nor is attended to."""
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
    """Return a mask of pairs, (sequences, 1, longest, longest), from a key mask (sequences, 1, 1, longest)."""
    return key_mask & key_mask.transpose(0, 1, 3, 2)


KEY = "enhanced_mask_decoder"
STEPS = 2


class DebertaForMaskedLM(AutoModelForMaskedLM):
    """AutoModelForMaskedLM of DeBERTa.

    With the option `enhanced_mask_decoder` (or that key in the config) words are predicted by the enhanced mask decoder
    (He et al. 2021, arXiv:2006.03654, section 3.2, and its authors' code), by which the published models were
    pretrained: absolute positions are added to the states below the last layer, as queries; the last layer runs twice,
    each time with keys and values of the states below and the queries of the time before; the head reads the second
    result. The checkpoint holds the table of positions. transformers' models, with either of their heads, read the last
    hidden state, as this one does without the option.

    Raises:
        ValueError: for the option where the config has position_biased_input, which adds the positions to the words, or
            embeddings narrower than the hidden size.
    """

    def __init__(self, config: Mapping[str, Any], *, enhanced_mask_decoder: bool | None = None):
        chosen = {} if enhanced_mask_decoder is None else {KEY: enhanced_mask_decoder}
        super().__init__({**config, **chosen})
        self.positions = None
        if ConfigReader(self.config).flag(KEY, False):
            read, spec = ConfigReader(self.config), self.spec
            read.require(position_biased_input=False)
            if spec.embedding_size != spec.hidden_size:
                raise ValueError(
                    f"config: embedding_size is {spec.embedding_size}, "
                    f"expected hidden_size {spec.hidden_size} for {KEY}"
                )
            name = f"{self.family.name_rules.prefix}embeddings.position_embeddings"
            rows = read.size("max_position_embeddings", 512, most=MOST_POSITIONS)
            self.positions = Embedding(name, rows=rows, features=spec.hidden_size)

    def _pass(self, *given: Any, read: Callable[[Encoded], Any], trace: Trace, **options: Any) -> Any:
        if self.positions is None:
            return super()._pass(*given, read=read, trace=trace, **options)
        shows_last = not trace.is_empty or options.get(COMPONENTS, False)
        if not shows_last:
            trace.layers = self.spec.num_layers - 1
        elif trace.states is None:
            trace.states = []

        def read_below(encoded: Encoded) -> Any:
            if shows_last:
                encoded.hidden = trace.states[-2]
                encoded.traced["hidden_states"] = encoded.traced["hidden_states"] if trace.shows_states else None
            return read(encoded)

        return super()._pass(*given, read=read_below, trace=trace, **options)

    def _read(self, encoded: Encoded, rows: Any = None) -> Any:
        """With the decoder `encoded` has the states below the last layer.

        A token is decoded from these and from itself, so that the maps are of the tokens that are wanted alone.
        """
        if self.positions is None:
            return super()._read(encoded, rows)
        run = replace(encoded.run, trace=Trace())
        layer, below, places = self.encoder.layers[-1], encoded.hidden, self._places(run, encoded.packed)
        context = self.encoder.adapter.context(run, encoded.inputs)
        keys = layer.attention.keys(run, below, context)
        if rows is not None:
            below, places = functional.take_rows(run, below, rows=rows), places[rows]
        states = functional.add(run, self.positions(run, places), below)
        for _ in range(STEPS):
            attended = layer.attention.attend_to(run, keys, context, queries=states, rows=rows)
            states = layer.feed_forward(run, layer.attention.close(run, attended, states), context)
        return states

    def _places(self, run: Pass, packed: PackedBatch) -> Any:
        longest, most = packed.position_ids.max(initial=0) + 1, self.positions.table.shape[0]
        if longest > most:
            raise ValueError(f"input_ids has a text of {longest} tokens, {KEY} has positions for {most}")
        return run.to_backend(packed.position_ids)
