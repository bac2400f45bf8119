"""DeBERTa (He et al. 2021, arXiv:2006.03654): attention by content and by relative position."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bertcore.checkpoint import NameRules
from bertcore.checkpoint.parameters import INDEX_BUFFERS, LAYER_NORM_ENDINGS
from bertcore.families import bert
from bertcore.families.deberta.blocks import (
    DisentangledAttentionByHead,
    DisentangledContext,
    DisentangledEmbeddings,
    Disentanglement,
    PositionsOfPass,
    RelativeEmbeddings,
    padding_of_sequences,
    real_tokens,
)
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.kernels.arrays import NativeArray
from bertcore.models.adapter import Adapter, Encoded
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.inputs import EncoderInput
from bertcore.models.registry import TOKEN_HEADS, HeadSpec, register
from bertcore.models.spec import MOST_POSITIONS, ConfigReader, standard_spec
from bertcore.nn import functional
from bertcore.nn.layers import Embedding
from bertcore.nn.packing import PackedBatch
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass, Trace
from bertcore.tape import Tensor

COMPONENTS = "output_attention_components"


class AttentionComponents(NamedTuple):
    """The terms whose sum is a layer's attention scores (He et al. 2021, arXiv:2006.03654, equation 2).

    Each is (sequences, heads, length, length), scaled like the scores, and zero if either token is padding; None if the
    model lacks the term.
    """

    content_to_content: NativeArray | None
    content_to_position: NativeArray | None
    position_to_content: NativeArray | None


@dataclass(kw_only=True)
class ComponentsInput(EncoderInput):
    """Inputs with a list that collects the terms of scores."""

    components: list  # to which each layer appends its terms
    is_plain = False


class DisentangledAdapter(Adapter):
    """DeBERTa's adapter; calls take `output_attention_components`: whether to return the terms of scores."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.relative = RelativeEmbeddings(names, spec)

    def pack(self, run: Pass, *given: Any, output_attention_components: bool = False, **options: Any) -> EncoderInput:
        inputs = super().pack(run, *given, **options)
        return ComponentsInput(**vars(inputs), components=[]) if output_attention_components else inputs

    def reads_on_host(self, run: Pass) -> Collection[str]:
        """Return "longest" in training, where positions are projected for the longest sequence."""
        return () if run.tape is None else ("longest",)

    def begin(
        self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]
    ) -> tuple[Tensor, DisentangledContext]:
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
        """Return outputs with attention_components: each layer's AttentionComponents on request, else None."""
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


def _pair_mask(key_mask: NativeArray) -> NativeArray:
    """Return a mask of pairs, (sequences, 1, longest, longest), from a key mask (sequences, 1, 1, longest)."""
    return key_mask & key_mask.transpose(0, 1, 3, 2)


KEY = "enhanced_mask_decoder"
STEPS = 2


class DebertaForMaskedLM(AutoModelForMaskedLM):
    """AutoModelForMaskedLM of DeBERTa.

    With the option `enhanced_mask_decoder` (or that key in the config) words are predicted by the enhanced mask decoder
    (He et al. 2021, arXiv:2006.03654, section 3.2, and its authors' code), with which the published models were
    pretrained. Absolute positions are added to the input of the last layer to form queries. The last layer runs twice,
    with keys and values of its input, and with the first result as the second run's queries. The head reads the second
    result. The checkpoint holds the position table. Without the option, the head reads the last hidden state, as both
    of transformers' heads do.

    Raises:
        ValueError: if the option is used with a config that has position_biased_input, which adds positions to words,
            or embeddings narrower than the hidden size.
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
                    f"config: embedding_size is {spec.embedding_size}, expected {spec.hidden_size} for {KEY}"
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

    def _read(self, encoded: Encoded, rows: NativeArray | None = None) -> Tensor:
        """Return the input of the head; with the decoder, `encoded` has the last layer's input.

        A token is decoded from these states and itself, so only the requested tokens are projected.
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

    def _places(self, run: Pass, packed: PackedBatch) -> NativeArray:
        longest, most = packed.position_ids.max(initial=0) + 1, self.positions.table.shape[0]
        if longest > most:
            raise ValueError(f"input_ids has a text of {longest} tokens, expected at most {most} for {KEY}")
        return run.to_backend(packed.position_ids)


_TYPES = ("c2p", "p2c")


def disentangled_spec(
    config: Mapping[str, Any], details: Disentanglement, defaults: Mapping[str, Any], **layer: Any
) -> EncoderSpec:
    """Return the spec of a DeBERTa config of any version; arguments are as for `standard_spec`."""
    read = ConfigReader(config)
    choices = {"classifier_dropout": read.rate("hidden_dropout_prob", 0.1)}
    hidden_size = read.size("hidden_size", defaults.get("hidden_size", 768))
    read.require(pooler_hidden_size=hidden_size)
    if not read.flag("position_biased_input", True):
        choices["max_positions"] = 0
    if not read.flag("legacy", True):  # this head always uses the word embeddings' weight
        choices["tied_decoder"] = True
    return standard_spec(
        config,
        embedding_size=read.size("embedding_size", hidden_size),
        is_relative=details.span > 0,
        details=details,
        defaults={"type_vocab_size": 0, "layer_norm_eps": 1e-7} | defaults,
        layer=layer,
        each_layer=lambda index, layer: replace(layer, scale=(layer.head_size * details.score_terms) ** -0.5),
        **choices,
    )


def position_types(config: Mapping[str, Any]) -> list[str]:
    """Return pos_att_type ("c2p", "p2c", both or none), given as a list or a string separated by "|"."""
    value = config.get("pos_att_type")
    types = [part.strip() for part in value.lower().split("|")] if isinstance(value, str) else value or []
    if not isinstance(types, list | tuple) or any(kind not in _TYPES for kind in types):
        raise ValueError(f"config: pos_att_type is {value!r}, expected some of {', '.join(_TYPES)}, or null")
    return list(types)


def max_distance(config: Mapping[str, Any]) -> int:
    """Return the distance that larger ones count as; 0 without relative_attention."""
    read, value = ConfigReader(config), config.get("max_relative_positions")
    if not read.flag("relative_attention", False):
        return 0
    if value is None or (type(value) is int and value < 1):
        return read.size("max_position_embeddings", 512, most=MOST_POSITIONS)
    return read.size("max_relative_positions", 1, most=MOST_POSITIONS)


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    types = position_types(config)
    ConfigReader(config).require(talking_head=False)
    details = Disentanglement(
        content_to_position="c2p" in types,
        position_to_content="p2c" in types,
        score_terms=1 + len(types),
        max_distance=max_distance(config),
    )
    qkv = {"qkv_by_head": True, "without_bias": frozenset({"qkv"})}
    return disentangled_spec(config, details, {"vocab_size": 50265}, **qkv)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads that all DeBERTa versions have; only v2 has multiple choice."""
    language_model = bert.heads(read)["masked_lm"]
    if not read.flag("legacy", True):
        language_model = LanguageModelSpec(
            decoder="lm_predictions.lm_head.decoder",
            tied_bias="lm_predictions.lm_head.bias",
            transform="lm_predictions.lm_head.dense",
            transform_norm="lm_predictions.lm_head.LayerNorm",
            activation=language_model.activation,
        )
    pooled = {"dense": "pooler.dense", "activation": read.activation("pooler_hidden_act", "gelu")}
    pooled["dense_dropout"] = read.rate("pooler_dropout", 0.0)
    pooled["dropout"] = read.rate("cls_dropout", read.rate("hidden_dropout_prob", 0.1))
    return TOKEN_HEADS | {
        "masked_lm": language_model,
        "sequence_classification": ClassifierSpec("classifier", "first", **pooled),
    }


def _head_spellings() -> tuple[tuple[str, str], ...]:
    """Return both spellings of the language model's head as pairs, both ways; configs do not say which is used."""
    parts = [
        ("cls.predictions.bias", "lm_predictions.lm_head.bias"),
        *(
            (f"cls.predictions.transform.{part}.{kind}", f"lm_predictions.lm_head.{part}.{kind}")
            for part in ("dense", "LayerNorm")
            for kind in ("weight", "bias")
        ),
    ]
    return *parts, *((new, old) for old, new in parts)


_MAPS = ("query", "key", "value")

DEBERTA = register(
    replace(
        bert.BERT,
        model_type="deberta",
        architecture="Deberta",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="deberta.",
            heads=("cls.predictions.", "lm_predictions.", "mask_predictions.", "pooler.", "classifier.", "qa_outputs."),
            tied=bert.BERT.name_rules.tied,
            endings=LAYER_NORM_ENDINGS + _head_spellings(),
            # Published files contain a position table that the model does not use.
            buffers=(*INDEX_BUFFERS, "embeddings.position_embeddings.weight"),
        ),
        encoder_names=bert.BERT.encoder_names
        | {"embeddings_projection": "embeddings.embed_proj", "relative_embeddings": "encoder.rel_embeddings"},
        layer_names={part: name for part, name in bert.BERT.layer_names.items() if part not in _MAPS}
        | {
            "qkv": "encoder.layer.{layer}.attention.self.in_proj",
            "query_bias": "encoder.layer.{layer}.attention.self.q_bias",
            "value_bias": "encoder.layer.{layer}.attention.self.v_bias",
            "position_key": "encoder.layer.{layer}.attention.self.pos_proj",
            "position_query": "encoder.layer.{layer}.attention.self.pos_q_proj",
        },
        embeddings=DisentangledEmbeddings,
        attention=DisentangledAttentionByHead,
        adapter=DisentangledAdapter,
        models={"AutoModelForMaskedLM": DebertaForMaskedLM},
        pooler=None,
        inputs=(COMPONENTS,),
        batch_inputs=(COMPONENTS,),
        soft_labels=True,
    )
)
