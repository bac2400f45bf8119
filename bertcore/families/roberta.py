"""RoBERTa (Liu et al. 2019, arXiv:1907.11692), also for CodeBERT, and the families CamemBERT and XLM-R."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec, SpanBoundarySpec
from bertcore.models.registry import POOLED_HEADS, HeadSpec, discriminator_head, fewer_layers, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads; the language model's activation is the exact GELU, whatever hidden_act is."""
    dense = {"dense": "classifier.dense", "activation": "tanh"}
    return POOLED_HEADS | {
        "masked_lm": LanguageModelSpec(
            "lm_head.decoder", "lm_head.bias", "lm_head.dense", "lm_head.layer_norm", activation="gelu"
        ),
        "span_boundary": SpanBoundarySpec(),
        "sequence_classification": ClassifierSpec("classifier.out_proj", "first", **dense),
        "multiple_choice": ClassifierSpec("classifier", "pooler", dropout=read.rate("hidden_dropout_prob", 0.1)),
    }


def heads_and_discriminator(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads and CodeBERT's unpublished one for replaced tokens, which is like ELECTRA's."""
    return {**heads(read), "replaced_tokens": discriminator_head(read)}


def spec(config: Mapping[str, Any], vocab_size: int = 30522, **choices: Any) -> EncoderSpec:
    """Return the spec of a config like RoBERTa's; `vocab_size` is the default."""
    defaults = {"vocab_size": vocab_size, "pad_token_id": 1}
    return standard_spec(config, defaults=defaults, positions_after_padding=True, **choices)


ROBERTA = register(
    replace(
        BERT,
        model_type="roberta",
        architecture="Roberta",
        spec_from_config=partial(spec, vocab_size=50265),
        heads=heads_and_discriminator,
        generator=fewer_layers,
        name_rules=NameRules(
            prefix="roberta.",
            heads=(
                "pooler.",
                "linear.",
                "lm_head.",
                "span_boundary.",
                "classifier.",
                "qa_outputs.",
                "discriminator_predictions.",
            ),
            tied=(
                ("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),
                ("lm_head.decoder.bias", "lm_head.bias"),
            ),
        ),
    )
)


# RoBERTa for French (Martin et al. 2019, arXiv:1911.03894); its checkpoints have RoBERTa's names.
CAMEMBERT = register(replace(ROBERTA, model_type="camembert", architecture="Camembert", spec_from_config=spec))


# RoBERTa for 100 languages (Conneau et al. 2019, arXiv:1911.02116), with RoBERTa's names as well.
XLM_ROBERTA = register(replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRoberta", spec_from_config=spec))
