"""BERT Hash (NeuML's bert-hash-nano, -pico and -femto): BERT with narrow word embeddings, projected to its width.

The projection comes before token types and positions are added; the decoder is not tied to the word embeddings.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.families import bert
from bertcore.families.bert import BERT
from bertcore.models.registry import HeadSpec, published_code, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a BERT Hash config."""
    size = ConfigReader(config).size("projections", 5)
    return standard_spec(config, embedding_size=size, projects_words=True, tied_decoder=False)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return BERT's heads except next-sentence prediction."""
    return {task: head for task, head in bert.heads(read).items() if task != "next_sentence"}


BERT_HASH = register(
    replace(
        BERT,
        model_type="bert_hash",
        architecture="BertHash",
        spec_from_config=spec,
        heads=heads,
        name_rules=replace(
            BERT.name_rules,
            tied=(("cls.predictions.decoder.bias", "cls.predictions.bias"),),
            anchor="embeddings.word_embeddings.embeddings.weight",
        ),
        encoder_names=BERT.encoder_names
        | {
            "word_embeddings": "embeddings.word_embeddings.embeddings",
            "embeddings_projection": "embeddings.word_embeddings.projections",
        },
        code=published_code(
            *("modeling_bert_hash", "configuration_bert_hash"),
            repositories=[f"NeuML/bert-hash-{size}" for size in ("femto", "pico", "nano")],
        ),
    )
)
