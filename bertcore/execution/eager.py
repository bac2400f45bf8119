"""The eager executor: operation by operation, for every kind of pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from bertcore.execution import Pass
from bertcore.tape import Tensor

if TYPE_CHECKING:
    from bertcore.models.encoder import Encoder
    from bertcore.models.inputs import EncoderInput

GROUP_TOKENS = 1024


def run(run: Pass, encoder: Encoder, inputs: EncoderInput) -> Tensor:
    """Return the last hidden state of a batch, or the state that the family's own layers pass on."""
    if run.is_inference and run.cache is None and run.trace.is_empty:
        return in_groups(encoder, inputs, lambda group: encoder.forward(run, group))
    return encoder.forward(run, inputs)


def in_groups(encoder: Encoder, inputs: EncoderInput, forward: Callable[[EncoderInput], Tensor]) -> Tensor:
    """Return the results of `forward` for groups of a large batch in host memory, joined.

    What passes from one operation to the next then stays in the processor's cache (and memory is bounded by a group).
    Sequences do not see each other, so the result has the same bits.
    """
    if not inputs.is_plain or encoder.adapter.needs_whole_batch or not isinstance(inputs.input_ids, np.ndarray):
        return forward(inputs)
    groups = inputs.groups(GROUP_TOKENS)
    return forward(inputs) if len(groups) == 1 else np.concatenate(list(map(forward, groups)))
