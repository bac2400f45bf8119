"""XLNet (Yang et al. 2019, arXiv:1906.08237): two-stream attention, relative positions, a memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.xlnet.adapter import TwoStreamAdapter, TwoStreamDetails
from bertcore.families.xlnet.blocks import TwoStreamAttention, TwoStreamEmbeddings, TwoStreamLayer
from bertcore.heads.classifier import ClassifierSpec
from bertcore.heads.language_model import LanguageModelSpec
from bertcore.models.registry import TOKEN_HEADS, Family, HeadSpec, in_each_layer, register, summary_head
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.spec import EncoderSpec

KEYS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "num_hidden_layers": "n_layer",
    "hidden_act": "ff_activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
    "classifier_dropout": "summary_last_dropout",
}
LARGE = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
}


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of an XLNet config; there is no limit to a sequence's length, and any number may be a token type.

    untie_r, which transformers ignores, is ignored: every layer has biases of its own.
    """
    read = ConfigReader(config)
    read.flag("untie_r", True)
    numbers = ConfigReader(config, LARGE, KEYS)
    hidden, heads = numbers.size("hidden_size"), numbers.size("num_attention_heads")
    if hidden % heads:
        keys = numbers.name("hidden_size"), numbers.name("num_attention_heads")
        raise ValueError(f"config: {keys[0]} is {hidden}, expected a multiple of {keys[1]} {heads}")
    layer = {
        "inner_dropout": read.rate("dropout", 0.1),
        "head_dim": None if config.get("d_head") is None else read.size("d_head"),
        "is_causal": read.choice("attn_type", "bi", "bi", "uni") == "uni",
    }
    fixed = {"type_vocab_size": 0, "max_positions": 0, "is_relative": True, "pad_token_id": None}
    numbers = standard_spec(config, keys=KEYS, defaults=LARGE, layer=layer, **fixed)
    details = TwoStreamDetails(
        memory_length=read.index("mem_len", 512, 2**31) or None,
        reuse_length=read.count("reuse_len", 0),
        clamp_length=max(read.integer("clamp_len", -1), 0),
        same_length=read.flag("same_length", False),
        returns_memory=read.flag("use_mems_eval", True),
        trains_with_memory=read.flag("use_mems_train", False),
        half_runs_backwards=read.flag("bi_data", False),
    )
    return replace(numbers, details=details)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """The heads of an XLNet config."""
    summary = summary_head(read, "logits_proj", source="last", activation="tanh")
    return TOKEN_HEADS | {
        "token_classification": ClassifierSpec("classifier", "tokens", dropout=0.0),
        "causal_lm": LanguageModelSpec(decoder="lm_loss", tied_bias="lm_loss.bias"),
        "sequence_classification": summary,
        "multiple_choice": summary,
    }


XLNET = register(
    Family(
        model_type="xlnet",
        architecture="XLNet",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="transformer.",
            heads=(
                *("lm_loss.", "sequence_summary.", "logits_proj.", "classifier.", "qa_outputs."),
                *("start_logits.", "end_logits.", "answer_class."),  # of the beam search over spans
            ),
            tied=(("lm_loss.weight", "word_embedding.weight"),),
            anchor="word_embedding.weight",
        ),
        encoder_names={"word_embeddings": "word_embedding", "mask_embedding": "mask_emb"},
        layer_names=in_each_layer(
            "layer.{layer}.",
            {
                "query": "rel_attn.q",
                "key": "rel_attn.k",
                "value": "rel_attn.v",
                "positions": "rel_attn.r",
                "attention_output": "rel_attn.o",
                "content_bias": "rel_attn.r_w_bias",
                "position_bias": "rel_attn.r_r_bias",
                "segment_bias": "rel_attn.r_s_bias",
                "segments": "rel_attn.seg_embed",
                "attention_norm": "rel_attn.layer_norm",
                "expand": "ff.layer_1",
                "contract": "ff.layer_2",
                "feed_forward_norm": "ff.layer_norm",
            },
        ),
        embeddings=TwoStreamEmbeddings,
        attention=TwoStreamAttention,
        layer=TwoStreamLayer,
        adapter=TwoStreamAdapter,
        pooler=None,
        inputs=("mems", "perm_mask", "target_mapping", "input_mask", "use_mems"),
        batch_inputs=("mems", "perm_mask", "target_mapping", "use_mems"),
        endings={"ForQuestionAnswering": "ForQuestionAnsweringSimple"},
    )
)
