"""NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): nomic-embed-text v1, v1.5 and v2, arctic-embed-m-long.

BERT with rotary positions, gated feed-forwards and linear maps without biases; v2 has plain feed-forwards, with biases,
and mixtures of experts. Published configs have GPT-2's keys, transformers' have BERT's; both are read.

Beyond the trained length a config may stretch positions, here by the length of each text, not of the longest text in
its batch, so that a text's embedding does not depend on its neighbours.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertcore import kernels
from bertcore.checkpoint import NameRules
from bertcore.checkpoint.parameters import INDEX_BUFFERS, LATER_MODULES
from bertcore.families.bert import BERT
from bertcore.heads import ClassifierSpec
from bertcore.kernels.arrays import NativeArray, working_dtype
from bertcore.kernels.deferred import computed
from bertcore.kernels.softmax import SOFTMAX, SoftmaxSaved
from bertcore.models.registry import HeadSpec, in_each_layer, published_code, register
from bertcore.models.spec import (
    ACTIVATIONS,
    MOST_POSITIONS,
    ConfigReader,
    rotary_of_all_layers,
    standard_spec,
    without_older_keys,
)
from bertcore.nn import functional
from bertcore.nn.blocks import EncoderLayer, LayerContext, SelfAttention, Sublayer, make_norm
from bertcore.nn.layers import Linear, drop
from bertcore.nn.layout import Layout
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass(frozen=True)
class MixtureSpec:
    """Settings of a mixture of experts."""

    every: int  # layer i has a mixture if i % every is 1
    experts: int  # the number of feed-forwards in a mixture
    chosen: int  # the number of feed-forwards that a token passes


class MixtureOfExperts(Sublayer):
    """A mixture of experts: the weighted sum of the feed-forwards that a router finds most probable for a token.

    The weights are their probabilities, not rescaled to a sum of 1 (Shazeer et al. 2017, arXiv:1701.06538, section 2;
    Nussbaum and Duderstadt 2025, arXiv:2502.07972). A bias that all experts share, the residual and the norm follow.

    An expert computes only the tokens that chose it, gathered from the batch. A checkpoint stores all experts in one
    tensor, one below the other.
    """

    def __init__(self, names: Mapping[str, str], layer: LayerSpec, mixture: MixtureSpec):
        self.norm_first, self.dropout, self.activation = layer.norm_first, layer.dropout, layer.activation
        self.chosen, self.experts = mixture.chosen, mixture.experts
        features, width, experts = layer.hidden_size, layer.intermediate_size, mixture.experts
        self.router = Linear(names["router"], in_features=features, out_features=experts, bias=False)
        self.expand = Parameter(names["experts_expand"], shape=(experts * width, features), use="weight")
        split = experts, width, features
        layout = Layout((experts * width, features), axes=(0, 2, 1), row_axes=2, split=split)
        self.contract = Parameter(names["experts_contract"], use="weight", layout=layout)
        self.expand.chosen_of = self.contract.chosen_of = mixture.chosen, experts
        self.bias = Parameter(names["experts_bias"], shape=(features,), initial="zeros")
        self.norm = make_norm(names, "feed_forward_norm", layer)

    def mix(self, run: Pass, source: Tensor, context: LayerContext | None = None) -> Tensor:
        """Map (tokens, hidden) to the weighted sum of the chosen experts' outputs, (tokens, hidden)."""
        scores = self.router(run, source)
        values = computed(value_of(scores))  # a recorder must compute them before the choice
        xp = kernels.array_module(values)
        chosen = xp.sort(xp.argsort(-values, axis=1, kind="stable")[:, : self.chosen], axis=1)
        factors = chosen_probabilities(run, scores, chosen=chosen)
        order = xp.argsort(chosen.reshape(-1), kind="stable")  # sorts pairs of (token, expert) by expert, then by token
        counts = xp.bincount(chosen.reshape(-1), minlength=self.experts).tolist()
        offsets = [0, *itertools.accumulate(counts)]
        gathered = functional.take_rows(run, source, rows=order // self.chosen)
        expanded = functional.grouped_linear(
            run, gathered, self.expand.weight(run), offsets=offsets, activation=self.activation
        )
        outputs = functional.grouped_linear(run, expanded, self.contract.weight(run), offsets=offsets)
        return weighted_sums(run, outputs, factors, order=order)

    def close(self, run: Pass, mixed: Tensor, residual: Tensor) -> Tensor:
        """Return the norm, if it comes last, of `mixed` plus the bias and the residual."""
        total = functional.add(run, mixed, self.bias.value(run))
        total = functional.add(run, drop(run, total, self.dropout), residual)
        return total if self.norm_first or self.norm is None else self.norm(run, total)


class NomicLayer(EncoderLayer):
    """An encoder layer whose feed-forward may be a mixture of experts."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block] = SelfAttention):
        layer, mixture = spec.layers[index], spec.details
        super().__init__(names, spec, index, attention)
        if mixture is not None and index % mixture.every == 1:
            self.reads_on_host = True
            self.feed_forward = MixtureOfExperts(names, layer, mixture)


@operation()
def chosen_probabilities(run: Pass, scores: Tensor, *, chosen: NativeArray) -> Tensor:
    """Return the softmax of `scores`, (tokens, classes), at the classes `chosen`, (tokens, choices)."""
    probabilities = kernels.softmax(scores, backend=run.backend)
    tokens = kernels.array_module(scores).arange(len(scores))[:, None]

    def pullback(grad):
        whole = kernels.array_module(grad).zeros(scores.shape, grad.dtype)
        whole[tokens, chosen] = grad
        return (SOFTMAX.backward(run.backend, whole, SoftmaxSaved(probabilities, 1)),)

    return probabilities[tokens, chosen], pullback


@operation()
def weighted_sums(run: Pass, rows: Tensor, factors: Tensor, *, order: NativeArray) -> Tensor:
    """Return the sum of each token's rows times their factors, (tokens, features).

    The factors are (tokens, choices); `order` are the flat indices of `rows` among them.
    """
    by_token = kernels.array_module(rows).empty_like(rows)
    by_token[order] = rows
    by_token = by_token.reshape(*factors.shape, rows.shape[1])

    def pullback(grad):
        dtype = working_dtype(grad.dtype)
        of_factors = (by_token * grad[:, None]).sum(axis=2, dtype=dtype).astype(factors.dtype, copy=False)
        return (factors[:, :, None] * grad[:, None]).reshape(rows.shape)[order], of_factors

    return (by_token * factors[:, :, None]).sum(axis=1, dtype=rows.dtype), pullback


KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
}
DEFAULTS = {"vocab_size": 30528, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GATED = {"swiglu": "silu", "geglu": "gelu"}  # activation_function -> hidden_act
PLAIN = "gelu"  # an activation_function without a gate
MOST_EXPERTS = 1024
# Keys that have the same value in all published checkpoints; others are not supported.
FIXED = {
    **dict.fromkeys(("prenorm", "parallel_block", "parallel_block_tied_norm", "use_rms_norm", "causal"), False),
    **dict.fromkeys(("expert_choice_router", "moe_normalize_expert_weights"), False),
    "num_shared_experts": 0,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
# Keys that only published configs have.
OLDER = frozenset(
    (
        *("auto_map", "activation_function", "rotary_emb_base", "rotary_scaling_factor", "max_trained_positions"),
        *("moe_every_n_layers", "num_experts", "moe_top_k", "rope_theta", "rope_scaling", *FIXED, *KEYS.values()),
    )
)


def _activation(read: ConfigReader) -> str:
    kind = read.choice("activation_function", "", "", *GATED, PLAIN)
    return ACTIVATIONS[GATED.get(kind, kind)] if kind else read.activation("hidden_act", "silu")


def _mixture(read: ConfigReader) -> MixtureSpec | None:
    every = read.count("moe_every_n_layers", 0)
    if not every:
        read.require(num_experts=0)
        return None
    read.require(activation_function=PLAIN)
    experts = read.size("num_experts", most=MOST_EXPERTS)
    return MixtureSpec(every, experts, chosen=read.size("moe_top_k", 1, most=experts))


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a NomicBERT config, with published or transformers' keys.

    Published configs have the most positions of a text (n_positions) and the trained length (max_trained_positions); in
    transformers max_position_embeddings is both, and dynamic scaling goes beyond it.
    """
    read = ConfigReader(config)
    read.require(**FIXED)
    trained = read.size("max_trained_positions", read.size("max_position_embeddings", 2048), most=MOST_POSITIONS)
    theta, factor = read.number("rotary_emb_base", 1000.0), read.number("rotary_scaling_factor", 0.0)
    stretched = {"rope_scaling": {"rope_type": "dynamic", "factor": factor}} if factor else {}
    rope = ConfigReader({**config, "max_position_embeddings": trained, **stretched})
    gate = None if config.get("activation_function") == PLAIN else "first"
    biased = {"qkv_proj_bias": ("qkv", "attention_output"), "mlp_fc1_bias": ("expand",), "mlp_fc2_bias": ("contract",)}
    without_bias = frozenset(part for key, parts in biased.items() if not read.flag(key, False) for part in parts)
    layer = {"activation": _activation(read), "gate": gate, "without_bias": without_bias}
    if config.get("head_dim") is not None:
        layer["head_dim"] = read.size("head_dim")
    found = standard_spec(
        config,
        keys=KEYS,
        defaults=DEFAULTS,
        layer=layer,
        each_layer=rotary_of_all_layers(rope, theta),
        longest_text=read.size("n_positions", trained, most=MOST_POSITIONS),
        details=_mixture(read),
    )
    is_stretched = "n_positions" not in config and found.layers[0].rotary.scaling == "dynamic"
    return replace(found, longest_text=None) if is_stretched else found


def config_to_save(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    """Return the config with BERT's keys; n_positions, which transformers does not know, stays.

    Transformers lacks plain feed-forwards and mixtures: their configs stay as published.
    """
    if spec.layers[0].gate is None:
        return config
    renamed = {key: config[own] for key, own in KEYS.items() if own in config}
    new = renamed | {
        "hidden_act": GATED.get(config.get("activation_function"), config.get("hidden_act", "silu")),
        "max_position_embeddings": spec.layers[0].rotary.trained_length or spec.longest_text,
    }
    return without_older_keys(config, spec, OLDER, **new)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a NomicBERT config; only sequence classifiers have a pooler."""
    return {
        "masked_lm": replace(
            BERT.heads(ConfigReader({}))["masked_lm"],
            transform_norm="cls.predictions.transform.layer_norm",
            activation=_activation(read),
        ),
        "sequence_classification": ClassifierSpec(
            "classifier", "first", dense="nomic_bert.pooler.dense", activation="tanh", dense_dropout=0.0
        ),
        "token_classification": ClassifierSpec("classifier", "tokens"),
    }


NOMIC_BERT = register(
    replace(
        BERT,
        model_type="nomic_bert",
        architecture="NomicBert",
        spec_from_config=spec,
        heads=heads,
        config_to_save=config_to_save,
        name_rules=NameRules(
            prefix="nomic_bert.",
            heads=("pooler.", "cls.predictions.", "classifier."),
            tied=BERT.name_rules.tied,
            endings=(),
            buffers=("inv_freq", *INDEX_BUFFERS),
            modules=(
                *LATER_MODULES,
                ((".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."), ".attn.Wqkv."),
                (".self_attn.o_proj.", ".attn.out_proj."),
                (".mlp.up_proj.", ".mlp.fc11."),
                (".mlp.gate_proj.", ".mlp.fc12."),
                (".mlp.down_proj.", ".mlp.fc2."),
            ),
        ),
        encoder_names=BERT.encoder_names | {"embeddings_norm": "emb_ln"},
        layer_names=in_each_layer(
            "encoder.layers.{layer}.",
            qkv="attn.Wqkv",
            attention_output="attn.out_proj",
            attention_norm="norm1",
            expand="mlp.fc11",
            gate="mlp.fc12",
            plain_expand="mlp.fc1",
            router="mlp.router.layer",
            experts_expand="mlp.experts.mlp.w1",
            experts_contract="mlp.experts.mlp.w2",
            experts_bias="mlp.experts.bias",
            contract="mlp.fc2",
            feed_forward_norm="norm2",
        ),
        layer=NomicLayer,
        pooler=None,
        code=published_code(
            *("modeling_hf_nomic_bert", "configuration_hf_nomic_bert"), repositories=("nomic-ai/nomic-bert-2048",)
        ),
    )
)
