"""The recorded executor: on the CPU, in inference, an encoder is a program that runs in one call of compiled code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from bertcore import kernels
from bertcore.execution import eager
from bertcore.kernels.program import Recordings
from bertcore.models.inputs import EncoderInput
from bertcore.nn.parameter import PerVersion
from bertcore.passes import Pass
from bertcore.tape import Tensor

IDS = "input_ids", "token_type_ids", "position_ids"


class Recorded:
    """Programs of an encoder, kept for shapes that come again (`Recordings`) and one version of parameters."""

    def __init__(self) -> None:
        self._kept: PerVersion[Recordings] = PerVersion()

    def run(self, run: Pass, encoder: eager.Executable, inputs: EncoderInput) -> Tensor:
        """Return the last hidden state of a batch; passes that cannot be recorded run operation by operation."""
        if inputs.tokens <= eager.GROUP_TOKENS:
            return self._group(run, encoder, inputs)
        return eager.in_groups(encoder, inputs, partial(self._group, run, encoder))

    def _group(self, run: Pass, encoder: eager.Executable, inputs: EncoderInput) -> Tensor:
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
