"""Jina BERT v2 of the code model (jina-embeddings-v2-base-code): queries, keys and a second sum are normalised, too."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bertcore.execution import Pass
from bertcore.families.jina_bert import JINA_BERT, spec
from bertcore.models.registry import register
from bertcore.nn.encoder_layer import LayerContext, SelfAttention, make_norm
from bertcore.nn.layers import Linear
from bertcore.nn.spec import EncoderSpec, LayerSpec


class NormedAttention(SelfAttention):
    """Self-attention with normalised queries and keys; its residual is added twice, each time before a norm."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int = 0):
        super().__init__(names, spec, index)
        parts = "query_norm", "key_norm", "second_norm"
        self.query_norm, self.key_norm, self.second_norm = (make_norm(names, part, self.spec) for part in parts)

    def _make_projections(self, names: Mapping[str, str], layer: LayerSpec) -> list[Linear]:
        width = layer.hidden_size
        return [Linear(names[part], in_features=width, out_features=width) for part in ("query", "key", "value")]

    def mix(self, run: Pass, source: Any, context: LayerContext) -> Any:
        query, key, value = (project(run, source) for project in self.projections)
        return self.attend(run, [self.query_norm(run, query), self.key_norm(run, key), value], context)

    def close(self, run: Pass, mixed: Any, residual: Any) -> Any:
        return self.second_norm(run, super().close(run, mixed, residual), residual)


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
        attention=NormedAttention,
    )
)
