"""DeBERTa's own operations beside attention, with their gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn import functional
from bertcore.nn.operation import operation
from bertcore.passes import Pass


@operation()
def spread_rows(run: Pass, array: Any, *, rows: Any, count: int) -> Any:
    """`count` rows: those of `array` at the integers `rows`, which differ, and zeros."""
    spread = kernels.array_module(array).zeros((count, array.shape[1]), array.dtype)
    spread[rows] = array
    return spread, lambda grad: (grad[rows],)


def padding_of_sequences(is_real: np.ndarray, cu_seqlens: np.ndarray) -> list[tuple[slice, np.ndarray]]:
    """Return (tokens, those among them that are padding) of each sequence with padding, in host memory."""
    spans = [slice(first, end) for first, end in functional.sequence_spans(cu_seqlens)]
    return [(span, np.flatnonzero(~is_real[span])) for span in spans if not is_real[span].all()]


@operation()
def mean_value_for_padding(
    run: Pass, attended: Any, qkv: Any, *, num_heads: int, padding: Sequence[tuple[slice, np.ndarray]]
) -> Any:
    """Return `attended`, (tokens, hidden), with the mean value of their sequence at tokens of `padding`.

    See `padding_of_sequences`; as in transformers' DeBERTa, where all scores of these tokens are one number.

    `qkv` and `num_heads` are those of `self_attention`, in one array.
    """
    output = attended.copy()
    value = functional.split_heads(qkv, num_heads=num_heads)[2]
    for span, rows in padding:
        output[span][rows] = value[span].mean(axis=0).reshape(-1)

    def pullback(grad):
        grad_qkv = kernels.array_module(grad).zeros(qkv.shape, grad.dtype)
        grad_attended, grad_value = grad.copy(), functional.split_heads(grad_qkv, num_heads=num_heads)[2]
        for span, rows in padding:
            count = span.stop - span.start
            grad_value[span] += grad[span][rows].sum(axis=0).reshape(num_heads, -1) / count
            grad_attended[span][rows] = 0
        return grad_attended, grad_qkv

    return output, pullback
