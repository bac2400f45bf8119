"""The eager executor, operation by operation, for every kind of pass; and the recorded one, for inference on the CPU.

Recorded, an encoder is a program that runs in one call of compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from bertcore import kernels
from bertcore.kernels.program import Recordings
from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput
from bertcore.nn.blocks import LayerContext
from bertcore.nn.parameter import Block, PerVersion
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


IDS = "input_ids", "token_type_ids", "position_ids"


class Recorded:
    """Programs of an encoder, kept for shapes that come again (`Recordings`) and one version of parameters."""

    def __init__(self) -> None:
        self._kept: PerVersion[Recordings] = PerVersion()

    def run(self, run: Pass, encoder: Executable, inputs: EncoderInput) -> Tensor:
        """Return the last hidden state of a batch; passes that cannot be recorded run operation by operation."""
        if inputs.tokens <= GROUP_TOKENS:
            return self._group(run, encoder, inputs)
        return in_groups(encoder, inputs, partial(self._group, run, encoder))

    def _group(self, run: Pass, encoder: Executable, inputs: EncoderInput) -> Tensor:
        embeddings = encoder.embeddings
        with_embeddings = inputs.is_plain and getattr(embeddings, "can_be_deferred", False)
        state, context = encoder.adapter.begin(run, inputs, _featureless if with_embeddings else embeddings)
        # Programs compute in float32.
        if not (context.can_be_recorded and isinstance(state, np.ndarray) and state.dtype == np.float32):
            return encoder.forward(run, inputs) if with_embeddings else encoder.run_layers(run, state, context)
        ids = inputs.input_ids, inputs.token_type_ids, inputs.position_ids

        def build(*arrays: Tensor) -> Tensor:
            *entered, cu_seqlens = arrays
            recording, state = replace(run, is_deferred=True), entered[0]
            if with_embeddings:
                state = embeddings(recording, replace(inputs, **dict(zip(IDS, entered, strict=True))))
            return encoder.run_layers(recording, state, replace(context, cu_seqlens=cu_seqlens))

        key = kernels.get_num_threads(), run.trace.layers
        recordings = self._kept.get(run, encoder.version, Recordings)
        return recordings.run(key, build, *(ids if with_embeddings else (state,)), context.cu_seqlens)


def _featureless(run: Pass, inputs: EncoderInput) -> np.ndarray:
    """Return a state without features: an adapter reads its dtype and the number of its rows."""
    return np.empty((inputs.tokens, 0), np.float32)
