"""BERT (Devlin et al. 2018, arXiv:1810.04805) and every checkpoint of its shape: mBERT, MiniLM, SciBERT, ..."""

from collections.abc import Mapping

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec, SpanBoundarySpec
from bertcore.models.registry import POOLED_HEADS, HeadSpec, in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    parts = (f"cls.predictions.{part}" for part in ("decoder", "bias", "transform.dense", "transform.LayerNorm"))
    return POOLED_HEADS | {
        "masked_lm": LanguageModelSpec(*parts, activation=read.activation("hidden_act", "gelu")),
        "next_sentence": ClassifierSpec("cls.seq_relationship", "pooler", dropout=0.0),
        "span_boundary": SpanBoundarySpec(),
    }


ENCODER_NAMES = {
    "word_embeddings": "embeddings.word_embeddings", "position_embeddings": "embeddings.position_embeddings",
    "type_embeddings": "embeddings.token_type_embeddings", "embeddings_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}  # fmt: skip
LAYER_NAMES = in_each_layer(
    "encoder.layer.{layer}.", query="attention.self.query", key="attention.self.key", value="attention.self.value",
    attention_output="attention.output.dense", attention_norm="attention.output.LayerNorm",
    expand="intermediate.dense", contract="output.dense", feed_forward_norm="output.LayerNorm",
)  # fmt: skip
BERT = register(
    model_type="bert", architecture="Bert", spec_from_config=standard_spec, heads=heads, encoder_names=ENCODER_NAMES,
    layer_names=LAYER_NAMES,
    name_rules=NameRules(
        prefix="bert.",
        heads=(
            *("pooler.", "cls.predictions.", "cls.seq_relationship.", "span_boundary.", "classifier.", "qa_outputs."),
            "linear.",  # of ColBERT
        ),
        tied=(
            ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
            ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ),
    ),
)  # fmt: skip
