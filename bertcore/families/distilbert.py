"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT without token types and pooler, with its own keys and names.

Its norms' epsilon is 1e-12, which no key changes. `sinusoidal_pos_embds` only decides how transformers initialises the
positions of a new model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import HeadSpec, in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec

KEYS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a DistilBERT config; if its own keys are absent, BERT's are read, as in transformers."""
    read = ConfigReader(config)
    own = {"intermediate_size": read.size("hidden_dim", 3072), "activation": read.activation("activation", "gelu")}
    layer = own | {"norm_eps": 1e-12, "attention_output_dropout": 0.0}
    fixed = {"type_vocab_size": 0, "classifier_dropout": read.rate("seq_classif_dropout", 0.2)}
    return standard_spec(config, keys=KEYS, defaults={"num_hidden_layers": 6}, layer=layer, **fixed)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a DistilBERT config; sequences are classified by their first token, with ReLU."""
    classifier = ClassifierSpec("classifier", "first", dense="pre_classifier", activation="relu", dense_dropout=0.0)
    tokens = {
        "token_classification": ClassifierSpec("classifier", "tokens", dropout=read.rate("dropout", 0.1)),
        "question_answering": ClassifierSpec("qa_outputs", "tokens", dropout=read.rate("qa_dropout", 0.1)),
    }
    return tokens | {
        "masked_lm": LanguageModelSpec(
            decoder="vocab_projector",
            tied_bias="vocab_projector.bias",
            transform="vocab_transform",
            transform_norm="vocab_layer_norm",
            activation=read.activation("activation", "gelu"),
        ),
        "sequence_classification": classifier,
        "multiple_choice": classifier,
    }


DISTILBERT = register(
    replace(
        BERT,
        model_type="distilbert",
        architecture="DistilBert",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="distilbert.",
            heads=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
            tied=(("vocab_projector.weight", "embeddings.word_embeddings.weight"),),
        ),
        layer_names=in_each_layer(
            "transformer.layer.{layer}.",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            attention_output="attention.out_lin",
            attention_norm="sa_layer_norm",
            expand="ffn.lin1",
            contract="ffn.lin2",
            feed_forward_norm="output_layer_norm",
        ),
        pooler=None,
    )
)
