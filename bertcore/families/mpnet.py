"""MPNet (Song et al. 2020, arXiv:2004.09297): RoBERTa without token types, with relative position biases.

One table of biases, with a row for each bucket of distances, is added to the scores of all layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertcore import kernels
from bertcore.families.roberta import ROBERTA, heads
from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput
from bertcore.models.registry import in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.blocks import LayerContext
from bertcore.nn.parameter import Parameter, PerVersion
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

BUCKETS = 32


@dataclass(frozen=True)
class BucketSpec:
    """Settings of a table of relative position biases."""

    rows: int = BUCKETS  # the number of rows of the table
    used: int = BUCKETS  # the number of rows, from the first, that distances refer to
    farthest: int = 128  # the distance from which all share the last bucket


# transformers' MPNet uses this padding token whatever pad_token_id says.
PADDING = 1


class BiasAdapter(Adapter):
    """Add relative position biases, the same in all layers."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        buckets = spec.details
        self.biases = Parameter(f"{names['relative_biases']}.weight", shape=(buckets.rows, spec.num_heads))
        self.distance_rows = kernels.bucketed_distances(buckets.used, buckets.farthest)
        self._distance_rows: PerVersion[Any] = PerVersion()

    def begin(self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]) -> tuple[Tensor, LayerContext]:
        hidden, context = super().begin(run, inputs, embeddings)
        rows = self._distance_rows.get(run, None, lambda: run.to_backend(self.distance_rows))
        biases = self.biases.value(run)
        context.relative = kernels.RelativePositions(rows, position_bias=biases, longest=inputs.longest)
        return hidden, context


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    read = ConfigReader(config)
    rows = read.size("relative_attention_num_buckets", BUCKETS)  # transformers uses only the first 32
    if rows < BUCKETS:
        raise ValueError(f"config: relative_attention_num_buckets is {rows}, expected at least {BUCKETS}")
    return standard_spec(
        config,
        defaults={"vocab_size": 30527},
        pad_token_id=PADDING,
        positions_after_padding=True,
        type_vocab_size=0,
        is_relative=True,
        biases_scores=True,
        details=BucketSpec(rows),
        classifier_dropout=read.rate("hidden_dropout_prob", 0.1),
    )


MPNET = register(
    replace(
        ROBERTA,
        heads=heads,
        model_type="mpnet",
        architecture="MPNet",
        spec_from_config=spec,
        name_rules=replace(ROBERTA.name_rules, prefix="mpnet."),
        encoder_names=ROBERTA.encoder_names | {"relative_biases": "encoder.relative_attention_bias"},
        layer_names=ROBERTA.layer_names
        | in_each_layer(
            "encoder.layer.{layer}.attention.",
            query="attn.q",
            key="attn.k",
            value="attn.v",
            attention_output="attn.o",
            attention_norm="LayerNorm",
        ),
        adapter=BiasAdapter,
    )
)
