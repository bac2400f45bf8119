"""What DeBERTa alone computes beside attention, with gradient rules."""

from typing import Any

from bertcore import kernels
from bertcore.nn import functional
from bertcore.nn.operation import operation


@operation()
def spread_rows(array: Any, *, rows: Any, count: int) -> Any:
    """`count` rows: those of `array` at the integers `rows`, which differ, and zeros."""
    spread = kernels.array_module(array).zeros((count, array.shape[1]), array.dtype)
    spread[rows] = array
    return spread, lambda grad: (grad[rows],)


def _padding_rows(is_real: Any, cu_seqlens: Any) -> list[tuple[slice, Any]]:
    """(its tokens, which of them are padding) for each sequence that has padding."""
    spans = [slice(first, end) for first, end in functional.sequence_spans(cu_seqlens)]
    return [(span, ~is_real[span]) for span in spans if not is_real[span].all()]


@operation()
def mean_value_for_padding(attended: Any, qkv: Any, *, num_heads: int, is_real: Any, cu_seqlens: Any) -> Any:
    """`attended`, (tokens, hidden), but for tokens that are not `is_real`, (tokens,) booleans: these have the mean of
    all values of their sequence, as in transformers' DeBERTa, where all their scores are one number.

    `qkv` and `num_heads` are those of `self_attention`, in one array.
    """
    padding = _padding_rows(is_real, cu_seqlens)
    output = attended.copy()
    value = functional.split_heads(qkv, num_heads=num_heads)[2]
    for span, rows in padding:
        output[span][rows] = value[span].mean(axis=0).reshape(-1)

    def pullback(grad):
        grad_qkv = kernels.array_module(grad).zeros(qkv.shape, grad.dtype)
        grad_attended, grad_value = grad.copy(), functional.split_heads(grad_qkv, num_heads=num_heads)[2]
        for span, rows in padding:
            grad_value[span] += grad[span][rows].sum(axis=0).reshape(num_heads, -1) / len(rows)
            grad_attended[span][rows] = 0
        return grad_attended, grad_qkv

    return output, pullback
