"""DeBERTa (He et al. 2021, arXiv:2006.03654): attention by content and by relative position."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.checkpoint.parameters import INDEX_BUFFERS, LAYER_NORM_ENDINGS
from bertcore.families import bert
from bertcore.families.deberta.blocks import DisentangledAttentionByHead, DisentangledEmbeddings, Disentanglement
from bertcore.families.deberta.models import COMPONENTS, DebertaForMaskedLM, DisentangledAdapter
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import TOKEN_HEADS, HeadSpec, register
from bertcore.models.spec import MOST_POSITIONS, ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec

_TYPES = ("c2p", "p2c")


def disentangled_spec(config: Mapping[str, Any], details: Disentanglement, defaults: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a DeBERTa config of any version; `defaults` are the values of absent keys."""
    read = ConfigReader(config)
    choices = {"classifier_dropout": read.rate("hidden_dropout_prob", 0.1)}
    hidden_size = read.size("hidden_size", defaults.get("hidden_size", 768))
    read.require(pooler_hidden_size=hidden_size)
    if not read.flag("position_biased_input", True):
        choices["max_positions"] = 0
    if not read.flag("legacy", True):  # that head has the word embeddings' weight, tied or not
        choices["tied_decoder"] = True
    return standard_spec(
        config,
        embedding_size=read.size("embedding_size", hidden_size),
        is_relative=details.span > 0,
        details=details,
        defaults={"type_vocab_size": 0, "layer_norm_eps": 1e-7} | defaults,
        each_layer=lambda index, layer: replace(layer, scale=(layer.head_size * details.score_terms) ** -0.5),
        **choices,
    )


def position_types(config: Mapping[str, Any]) -> list[str]:
    """pos_att_type: "c2p", "p2c", both or none, as a list or a string with "|" between."""
    value = config.get("pos_att_type")
    types = [part.strip() for part in value.lower().split("|")] if isinstance(value, str) else value or []
    if not isinstance(types, list | tuple) or any(kind not in _TYPES for kind in types):
        raise ValueError(f"config: pos_att_type is {value!r}, expected some of {', '.join(_TYPES)}, or null")
    return list(types)


def max_distance(config: Mapping[str, Any]) -> int:
    """The distance that greater ones count as; 0 without relative_attention."""
    read, value = ConfigReader(config), config.get("max_relative_positions")
    if not read.flag("relative_attention", False):
        return 0
    if value is None or (type(value) is int and value < 1):
        return read.size("max_position_embeddings", 512, most=MOST_POSITIONS)
    return read.size("max_relative_positions", 1, most=MOST_POSITIONS)


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of a DeBERTa v1 config."""
    types = position_types(config)
    ConfigReader(config).require(talking_head=False)
    details = Disentanglement(
        content_to_position="c2p" in types,
        position_to_content="p2c" in types,
        score_terms=1 + len(types),
        max_distance=max_distance(config),
    )
    return disentangled_spec(config, details, {"vocab_size": 50265})


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """The heads of a DeBERTa config of any version; multiple choice is v2's alone."""
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
    """Return pairs of spellings, both ways, of the language model's head; configs do not say which a file has."""
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
            # Published files keep a table of positions that the model does not add.
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
