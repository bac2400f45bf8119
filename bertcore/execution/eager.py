"""The eager executor: operation by operation, for every kind of pass."""

from __future__ import annotations

from collections.abc import Iterable
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
    return joined([encoder.forward(run, group) for group in groups(run, encoder, inputs)])


def groups(run: Pass, encoder: Encoder, inputs: EncoderInput) -> Iterable[EncoderInput]:
    """Cut a large batch into groups of sequences, or return it alone.

    In host memory what passes from one operation to the next then stays in the processor's cache (and memory is bounded
    by a group). Sequences do not see each other, so the result has the same bits.
    """
    is_plain = inputs.is_plain and not encoder.adapter.needs_whole_batch and run.cache is None
    if not (is_plain and run.trace.is_empty and run.is_inference and isinstance(inputs.input_ids, np.ndarray)):
        return [inputs]
    return inputs.groups(GROUP_TOKENS)


def joined(parts: list[Tensor]) -> Tensor:
    """Return the results of groups as one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
