"""The recorded executor: on the CPU, in inference, the layers are a program that runs in one call of compiled code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.execution import eager
from bertcore.kernels.program import Recordings
from bertcore.models.inputs import EncoderInput
from bertcore.nn.parameter import PerVersion
from bertcore.passes import Pass


class Recorded:
    """Programs of an encoder's layers, kept for shapes that come again (`Recordings`) and one version of parameters."""

    def __init__(self) -> None:
        self._kept: PerVersion[Recordings] = PerVersion()

    def run(self, run: Pass, encoder: eager.Executable, inputs: EncoderInput) -> Any:
        """Return the last hidden state of a batch; what cannot be recorded runs operation by operation."""
        return eager.in_groups(encoder, inputs, partial(self._group, run, encoder))

    def _group(self, run: Pass, encoder: eager.Executable, inputs: EncoderInput) -> Any:
        state, context = encoder.adapter.begin(run, inputs, encoder.embeddings)
        # Programs compute in float32.
        if not (context.can_be_recorded and isinstance(state, np.ndarray) and state.dtype == np.float32):
            return encoder.run_layers(run, state, context)

        def build(state: Any, cu_seqlens: Any) -> Any:
            return encoder.run_layers(replace(run, is_noted=True), state, replace(context, cu_seqlens=cu_seqlens))

        key = kernels.get_num_threads(), run.trace.layers
        recordings = self._kept.get(run, encoder.version, Recordings)
        return recordings.run(key, build, state, context.cu_seqlens)
