"""What XLNet alone computes, with gradient rules: scores of segments, and the sums of a permutation's targets."""

from typing import Any

from bertcore import kernels
from bertcore.execution import Pass
from bertcore.nn.functional.rows import column_sums, widened
from bertcore.nn.operation import operation


def _mix(array, matrices):
    parts = widened(array).reshape(len(matrices), -1, array.shape[1])
    mixed = kernels.array_module(array).matmul(widened(matrices), parts)
    return mixed.reshape(-1, array.shape[1]).astype(array.dtype, copy=False)


@operation()
def mix_rows(run: Pass, array: Any, *, matrices: Any) -> Any:
    """Each sequence's rows as sums of its rows: matrices (sequences, outputs, inputs) times (sequences * inputs,
    features) -> (sequences * outputs, features). All sequences have one length."""
    return _mix(array, matrices), lambda grad: (_mix(grad, matrices.transpose(0, 2, 1)),)


@operation()
def segment_scores(run: Pass, queries: Any, bias: Any, table: Any) -> Any:
    """(queries + bias) times the two vectors of each head: (tokens, heads, head_dim), (heads, head_dim) and (2, heads,
    head_dim) -> (tokens, heads, 2) (Yang et al. 2019, arXiv:1906.08237, section 2.5)."""
    wide, wide_bias = widened(queries), widened(bias)
    scores = [(wide * row).sum(axis=-1) + (wide_bias * row).sum(axis=-1) for row in widened(table)]
    xp = kernels.array_module(queries)

    def pullback(grad):
        parts = [grad[..., column, None] for column in range(2)]
        grad_queries = sum(part * row for part, row in zip(parts, table, strict=True))
        grad_table = [column_sums(part * queries) + column_sums(part) * bias for part in parts]
        return grad_queries, column_sums(grad_queries), xp.stack(grad_table)

    return xp.stack(scores, axis=-1).astype(queries.dtype, copy=False), pullback
