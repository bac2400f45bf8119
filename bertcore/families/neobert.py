"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587): root-mean-square norms first, rotary positions, SwiGLU, no biases.

Rotary positions rotate adjacent pairs; the joined projection has query, key and value of each head in turn.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import Family, HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import MOST_POSITIONS, ConfigReader, standard_spec
from bertcore.nn.layers import RMSNorm
from bertcore.nn.rotary import RotarySpec
from bertcore.nn.spec import PARTS, EncoderSpec, LayerSpec

KEYS = {"layer_norm_eps": "norm_eps", "initializer_range": "decoder_init_range"}
DEFAULTS = {
    "num_hidden_layers": 28, "hidden_act": "silu", "layer_norm_eps": 1e-6, "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
MULTIPLE = 8  # the feed-forward's width is rounded up to a multiple of this


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a NeoBERT config; the gated feed-forward's width is two thirds of intermediate_size."""
    read = ConfigReader(config)
    read.require(model_type="neobert")  # other models also have their code in a module named "model"
    width = max(2 * read.size("intermediate_size", 3072) // 3, 1)

    def with_rotary(index: int, layer: LayerSpec) -> LayerSpec:
        if layer.head_size % 2:
            raise ValueError(f"config: heads are {layer.head_size} wide, expected an even width")
        return replace(layer, rotary=RotarySpec(layer.head_size, 10_000.0, interleaved=True))

    return standard_spec(
        config,
        keys=KEYS,
        defaults=DEFAULTS,
        layer={
            "norm": RMSNorm,
            "norm_first": True,
            "gate": "first",
            "intermediate_size": -(-width // MULTIPLE) * MULTIPLE,
            "without_bias": PARTS,
            "qkv_by_head": True,
        },
        each_layer=with_rotary,
        type_vocab_size=0,
        longest_text=read.size("max_length", 4096, most=MOST_POSITIONS),
        without_bias=frozenset({"final_norm"}),
        classifier_dropout=read.rate("classifier_dropout", 0.1),
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads that the authors published."""
    return {
        "masked_lm": LanguageModelSpec("decoder", "decoder.bias"),
        "sequence_classification": ClassifierSpec("classifier", "first", dense="dense", activation="tanh"),
    }


NEOBERT = register(
    Family(
        model_type="neobert",
        architecture="NeoBERT",
        endings={"Model": "", "ForMaskedLM": "LMHead"},
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="model.",
            heads=("decoder.", "dense.", "classifier."),
            tied=(("decoder.weight", "encoder.weight"),),
            anchor="encoder.weight",
            endings=(),
            buffers=("freqs_cis",),
        ),
        encoder_names={"word_embeddings": "encoder", "final_norm": "layer_norm"},
        layer_names=in_each_layer(
            "transformer_encoder.{layer}.",
            attention_norm="attention_norm",
            qkv="qkv",
            attention_output="wo",
            feed_forward_norm="ffn_norm",
            expand="ffn.w12",
            contract="ffn.w3",
        ),
        pooler=None,
        code=published_code("model", repositories=("chandar-lab/NeoBERT",)),
    )
)
