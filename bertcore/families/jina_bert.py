"""Jina BERT v2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi and a gated feed-forward.

Its configs have the model_type "bert"; the code in their auto_map distinguishes them from BERT's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bertcore import kernels
from bertcore.families.bert import BERT
from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput
from bertcore.models.registry import register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.blocks import LayerContext, SelfAttention, make_norm
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of

ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


class AlibiAdapter(Adapter):
    """Add ALiBi's distance biases, the same in all layers."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self._kept: dict[Any, kernels.RelativePositions] = {}

    def begin(self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]) -> tuple[Tensor, LayerContext]:
        hidden, context = super().begin(run, inputs, embeddings)
        tokens, dtype = value_of(hidden).shape[0], value_of(hidden).dtype
        # For at least so many tokens, so that a recorded program also fits other sequence lengths.
        longest = 1 << max(tokens - 1, 0).bit_length()
        key = longest, dtype, run.place
        if key not in self._kept:
            made = kernels.alibi_positions(self.spec.num_heads, longest, dtype)
            rows, bias = run.to_backend(made.distance_rows), run.to_backend(made.position_bias)
            self._kept[key] = kernels.RelativePositions(rows, position_bias=bias)
        context.relative = replace(self._kept[key], longest=inputs.longest)
        return hidden, context


def spec(config: Mapping[str, Any], *, gate: str = "first") -> EncoderSpec:
    """Return the spec of a Jina BERT config; `gate` is as in `LayerSpec`."""
    read = ConfigReader(config)
    read.choice("position_embedding_type", "absolute", "alibi")
    activation = ACTIVATIONS[read.choice("feed_forward_type", "original", *ACTIVATIONS)]
    return standard_spec(
        config,
        position_embedding_type="alibi",
        layer={
            "activation": activation,
            "gate": gate,
            "without_bias": frozenset({"expand"}),
            "query_norm_size": read.size("hidden_size", 768),
        },
        longest_text=read.size("max_position_embeddings", 512),
        is_relative=True,
        biases_scores=True,
    )


JINA_BERT = register(
    replace(
        BERT,
        model_type="jina_bert",
        architecture="JinaBert",
        spec_from_config=spec,
        code=("jinaai/jina-bert-implementation--modeling_bert",),
        layer_names=BERT.layer_names
        | {
            "expand": "encoder.layer.{layer}.mlp.gated_layers",
            "contract": "encoder.layer.{layer}.mlp.wo",
            "feed_forward_norm": "encoder.layer.{layer}.mlp.layernorm",
        },
        adapter=AlibiAdapter,
    )
)


class TwiceNormedAttention(SelfAttention):
    """Self-attention whose residual is added twice, each time before a norm."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        super().__init__(names, spec, index)
        self.second_norm = make_norm(names, "second_norm", self.spec)

    def close(self, run: Pass, mixed: Tensor, residual: Tensor) -> Tensor:
        return self.second_norm(run, super().close(run, mixed, residual), residual)


# jina-embeddings-v2-base-code: queries, keys and a second residual sum are also normalised.
JINA_BERT_CODE = register(
    replace(
        JINA_BERT,
        model_type="jina_bert_code",
        spec_from_config=partial(spec, gate="second"),
        code=("jinaai/jina-bert-v2-qk-post-norm--modeling_bert",),
        layer_names=JINA_BERT.layer_names
        | {
            "query_norm": "encoder.layer.{layer}.attention.self.layer_norm_q",
            "key_norm": "encoder.layer.{layer}.attention.self.layer_norm_k",
            "second_norm": "encoder.layer.{layer}.layer_norm_1",
            "expand": "encoder.layer.{layer}.mlp.up_gated_layer",
            "contract": "encoder.layer.{layer}.mlp.down_layer",
            "feed_forward_norm": "encoder.layer.{layer}.layer_norm_2",
        },
        attention=TwiceNormedAttention,
    )
)
