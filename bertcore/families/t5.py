"""The encoder of T5 (Raffel et al. 2020, arXiv:1910.10683), also of sentence-t5 and GTR.

Root-mean-square norms come first, no linear map has a bias, and scores are not scaled. All layers share one table of
relative position biases, stored with the first layer. Version 1.1 and Flan have gated feed-forwards.
"""

from collections.abc import Mapping
from typing import Any

from bertcore.checkpoint import NameRules
from bertcore.families.mpnet import BUCKETS, BiasAdapter, BucketSpec
from bertcore.heads import ClassifierSpec
from bertcore.models.registry import Family, HeadSpec, in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.layers import RMSNorm
from bertcore.nn.spec import PARTS, EncoderSpec

KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "dropout_rate",
}
DEFAULTS = {
    "vocab_size": 32128, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "intermediate_size": 2048, "layer_norm_eps": 1e-6,
}  # fmt: skip
GATED, KINDS = "gated-", ("relu", "gelu", "gelu_new", "silu")
PROJECTIONS = (*KINDS, *(GATED + kind for kind in KINDS))
MOST_DISTANCE = 2**16


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    read = ConfigReader(config)
    used = read.size("relative_attention_num_buckets", BUCKETS)
    farthest = read.size("relative_attention_max_distance", 128, most=MOST_DISTANCE)
    if used < 4:
        raise ValueError(f"config: relative_attention_num_buckets is {used}, expected at least 4")
    if farthest <= used // 4:
        raise ValueError(
            f"config: relative_attention_max_distance is {farthest}, expected more than {used // 4}, a quarter of "
            "relative_attention_num_buckets"
        )
    kind, rate = read.choice("feed_forward_proj", "relu", *PROJECTIONS), read.rate("dropout_rate", 0.1)
    layer = {
        "norm": RMSNorm,
        "norm_first": True,
        "head_dim": read.size("d_kv", 64),
        "scale": 1.0,
        # transformers reads "gated-gelu" as the tanh approximation
        "activation": read.activation("dense_act_fn", "gelu_new" if kind == "gated-gelu" else kind.removeprefix(GATED)),
        "gate": "first" if read.flag("is_gated_act", kind.startswith(GATED)) else None,
        "without_bias": PARTS,
        "inner_dropout": rate,
    }
    return standard_spec(
        config,
        keys=KEYS,
        defaults=DEFAULTS,
        layer=layer,
        type_vocab_size=0,
        max_positions=0,
        tied_decoder=True,
        padding_learns=True,
        without_bias=frozenset({"final_norm"}),
        final_dropout=rate,
        classifier_dropout=read.rate("classifier_dropout", 0.0),
        is_relative=True,
        biases_scores=True,
        details=BucketSpec(used, used, farthest),
    )


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the only head that needs no decoder."""
    return {"token_classification": ClassifierSpec("classifier", "tokens")}


T5 = register(
    Family(
        model_type="t5",
        architecture="T5",
        endings={"Model": "EncoderModel"},
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="transformer.",
            heads=("classifier.", "decoder.", "lm_head."),
            tied=(("encoder.embed_tokens.weight", "shared.weight"),),
            anchor="shared.weight",
            endings=(),
            buffers=(),
        ),
        encoder_names={
            "word_embeddings": "shared",
            "relative_biases": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "final_norm": "encoder.final_layer_norm",
        },
        layer_names=in_each_layer(
            "encoder.block.{layer}.layer.",
            attention_norm="0.layer_norm",
            query="0.SelfAttention.q",
            key="0.SelfAttention.k",
            value="0.SelfAttention.v",
            attention_output="0.SelfAttention.o",
            feed_forward_norm="1.layer_norm",
            plain_expand="1.DenseReluDense.wi",
            gate="1.DenseReluDense.wi_0",
            expand="1.DenseReluDense.wi_1",
            contract="1.DenseReluDense.wo",
        ),
        adapter=BiasAdapter,
        pooler=None,
    )
)
