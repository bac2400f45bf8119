"""The eager executor: operation by operation, for every kind of pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput
from bertcore.nn.encoder_layer import LayerContext
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

GROUP_TOKENS = 1024


class Executable(Protocol):
    """An encoder as the executors use it; see `models.encoder.Encoder`."""

    spec: EncoderSpec
    embeddings: Block
    adapter: Adapter
    layers: list[Block]
    final_norm: Block | None
    recomputes_layers: bool

    @property
    def version(self) -> int:
        """The version of the parameters."""

    def in_use(self) -> list[Any]:
        """Return everything that a pass reads of the parameters now."""

    def forward(self, run: Pass, inputs: EncoderInput) -> Tensor:
        """Run a batch operation by operation."""

    def run_layers(self, run: Pass, state: Tensor, context: LayerContext) -> Tensor:
        """Run the layers and the last norm."""


def run(run: Pass, encoder: Executable, inputs: EncoderInput) -> Tensor:
    """Return the last hidden state of a batch, or the state that the family's own layers pass on."""
    if run.is_inference and run.cache is None and run.trace.is_empty:
        return in_groups(encoder, inputs, lambda group: encoder.forward(run, group))
    return encoder.forward(run, inputs)


def in_groups(encoder: Executable, inputs: EncoderInput, forward: Callable[[EncoderInput], Tensor]) -> Tensor:
    """Return the results of `forward` for groups of a large batch in host memory, joined.

    Intermediate results then stay in the processor's cache, and their memory is bounded by a group. Sequences do not
    see each other, so the result has the same bits.
    """
    if not inputs.is_plain or encoder.adapter.needs_whole_batch or not isinstance(inputs.input_ids, np.ndarray):
        return forward(inputs)
    groups = inputs.groups(GROUP_TOKENS)
    return forward(inputs) if len(groups) == 1 else np.concatenate(list(map(forward, groups)))
