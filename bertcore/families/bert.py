"""BERT (Devlin et al. 2018, arXiv:1810.04805), models of the same architecture (mBERT, MiniLM, ...), and BERT Hash."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec, SpanBoundarySpec
from bertcore.models.registry import POOLED_HEADS, Family, HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    language_model = LanguageModelSpec(
        decoder="cls.predictions.decoder",
        tied_bias="cls.predictions.bias",
        transform="cls.predictions.transform.dense",
        transform_norm="cls.predictions.transform.LayerNorm",
        activation=read.activation("hidden_act", "gelu"),
    )
    return POOLED_HEADS | {
        "masked_lm": language_model,
        "next_sentence": ClassifierSpec("cls.seq_relationship", "pooler", dropout=0.0),
        "span_boundary": SpanBoundarySpec(),
    }


BERT = register(
    Family(
        model_type="bert",
        architecture="Bert",
        spec_from_config=standard_spec,
        heads=heads,
        name_rules=NameRules(
            prefix="bert.",
            heads=(
                "pooler.",
                "linear.",  # ColBERT's
                "cls.predictions.",
                "cls.seq_relationship.",
                "span_boundary.",
                "classifier.",
                "qa_outputs.",
            ),
            tied=(
                ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            ),
        ),
        encoder_names={
            "word_embeddings": "embeddings.word_embeddings",
            "position_embeddings": "embeddings.position_embeddings",
            "type_embeddings": "embeddings.token_type_embeddings",
            "embeddings_norm": "embeddings.LayerNorm",
            "pooler": "pooler.dense",
        },
        layer_names=in_each_layer(
            "encoder.layer.{layer}.",
            query="attention.self.query",
            key="attention.self.key",
            value="attention.self.value",
            attention_output="attention.output.dense",
            attention_norm="attention.output.LayerNorm",
            expand="intermediate.dense",
            contract="output.dense",
            feed_forward_norm="output.LayerNorm",
        ),
    )
)


def hash_spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a BERT Hash config: narrow word embeddings, projected before the other embeddings are added.

    The decoder is not tied to the word embeddings.
    """
    size = ConfigReader(config).size("projections", 5)
    return standard_spec(config, embedding_size=size, projects_words=True, tied_decoder=False)


def hash_heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return BERT's heads except next-sentence prediction."""
    return {task: head for task, head in heads(read).items() if task != "next_sentence"}


# NeuML's bert-hash-nano, -pico and -femto.
BERT_HASH = register(
    replace(
        BERT,
        model_type="bert_hash",
        architecture="BertHash",
        spec_from_config=hash_spec,
        heads=hash_heads,
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
