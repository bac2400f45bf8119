"""GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners"), a causal language model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import TOKEN_HEADS, Family, HeadSpec, in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec, LayerSpec

KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "classifier_dropout": "summary_first_dropout",
}
DEFAULTS = {
    "vocab_size": 50257, "max_position_embeddings": 1024, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
    "pad_token_id": None,
}  # fmt: skip


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a GPT-2 config.

    `reorder_and_upcast_attn`, the order of operations in half precision, has no effect: scores and softmax are at least
    float32.
    """
    read = ConfigReader(config, keys=KEYS)
    read.flag("reorder_and_upcast_attn", False)
    by_size = read.flag("scale_attn_weights", True)
    by_layer = read.flag("scale_attn_by_inverse_layer_idx", False)

    def with_scale(index: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, scale=(layer.head_size**-0.5 if by_size else 1.0) / (index + 1 if by_layer else 1))

    return standard_spec(
        config,
        keys=KEYS,
        defaults=DEFAULTS,
        layer={
            "intermediate_size": read.size("n_inner", 4 * read.size("hidden_size", 768)),
            "norm_first": True,
            "is_causal": True,
            "is_transposed": True,
        },
        each_layer=with_scale,
        type_vocab_size=0,
        embedding_dropout=read.rate("embd_pdrop", 0.1),
        words_as_types=True,
        padding_learns=True,
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a GPT-2 config; a sequence is classified by its last word."""
    return TOKEN_HEADS | {
        "causal_lm": LanguageModelSpec("lm_head", tied_bias=None, predicts_next=True),
        "sequence_classification": ClassifierSpec(
            "score", "last_word", without_bias=frozenset({"output"}), dropout=0.0
        ),
        # transformers reads these keys although GPT2Config does not list them
        "token_classification": ClassifierSpec(
            "classifier", "tokens", dropout=read.rate("classifier_dropout", read.rate("hidden_dropout", 0.1))
        ),
    }


GPT2 = register(
    Family(
        model_type="gpt2",
        architecture="GPT2",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="transformer.",
            heads=("lm_head.", "score.", "classifier.", "qa_outputs.", "multiple_choice_head."),
            tied=(("lm_head.weight", "wte.weight"),),
            anchor="wte.weight",
            buffers=("attn.bias", "attn.masked_bias"),
        ),
        encoder_names={"word_embeddings": "wte", "position_embeddings": "wpe", "final_norm": "ln_f"},
        layer_names=in_each_layer(
            "h.{layer}.",
            attention_norm="ln_1",
            qkv="attn.c_attn",
            attention_output="attn.c_proj",
            feed_forward_norm="ln_2",
            expand="mlp.c_fc",
            contract="mlp.c_proj",
        ),
        pooler=None,
        end_of_text=50256,
    )
)
