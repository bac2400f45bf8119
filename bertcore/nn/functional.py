"""The operations that model code calls: the kernels, each with its gradient rule.

All work on packed tokens: activations are (tokens, features), with cu_seqlens where sequences matter.
"""

from typing import Any

from bertcore import kernels
from bertcore.tape import differentiable


def _linear_with_pullback(input, weight, bias, residual=None, *, activation=None):
    before = kernels.linear(input, weight, bias)  # kept: the activation's gradient needs it
    output = before if activation is None else kernels.activation(before, activation)

    def pullback(grad):
        grad_before = grad if activation is None else kernels.activation_backward(grad, before, activation)
        return *kernels.linear_backward(grad_before, input, weight, bias), None if residual is None else grad

    return output if residual is None else output + residual, pullback


@differentiable(_linear_with_pullback)
def linear(input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None) -> Any:
    """activation(input @ weight.T + bias) + residual; see `kernels.linear`."""
    return kernels.linear(input, weight, bias, activation=activation, residual=residual)


def _layer_norm_with_pullback(input, weight, bias, residual=None, *, eps):
    def pullback(grad):
        grads = kernels.layer_norm_backward(grad, input, weight, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.layer_norm(input, weight, bias, eps, residual=residual), pullback


@differentiable(_layer_norm_with_pullback)
def layer_norm(input: Any, weight: Any, bias: Any, residual: Any = None, *, eps: float) -> Any:
    """Layer normalisation of input + residual over the last axis; see `kernels.layer_norm`."""
    return kernels.layer_norm(input, weight, bias, eps, residual=residual)


def _take_rows_with_pullback(table, *, rows, padding_row=None):
    def pullback(grad):
        grad_table = kernels.embedding_backward(grad, rows, table.shape[0])
        if padding_row is not None:
            grad_table[padding_row] = 0
        return (grad_table,)

    return kernels.embedding(rows, table), pullback


@differentiable(_take_rows_with_pullback)
def take_rows(table: Any, *, rows: Any, padding_row: int | None = None) -> Any:
    """The rows of `table` (rows, features) at the integers `rows`: an embedding, or a choice of tokens.

    `padding_row` gets no gradient from here, as torch.nn.Embedding's padding_idx does not.
    """
    return kernels.embedding(rows, table)


@differentiable(lambda left, right: (left + right, lambda grad: (grad, grad)))
def add(left: Any, right: Any) -> Any:
    """left + right, of one shape."""
    return left + right


def _split_heads(qkv: Any, num_heads: int) -> tuple[Any, Any, Any]:
    """(tokens, 3 * hidden) -> query, key and value, each a (tokens, heads, head_dim) view."""
    tokens, width = qkv.shape
    heads = qkv.reshape(tokens, 3, num_heads, width // (3 * num_heads))
    return heads[:, 0], heads[:, 1], heads[:, 2]


def _self_attention_with_pullback(qkv, *, num_heads, cu_seqlens, attentions=None, compute_dtype=None):
    assert compute_dtype is None, "gradients need the arrays' own precision"
    query, key, value = _split_heads(qkv, num_heads)
    options = {"cu_seqlens": cu_seqlens, "return_probs": attentions is not None}
    output, lse, *probabilities = kernels.attention(query, key, value, return_lse=True, **options)
    if attentions is not None:
        attentions.extend(probabilities)

    def pullback(grad):
        grads = kernels.attention_backward(
            grad.reshape(query.shape), query, key, value, output, lse, cu_seqlens=cu_seqlens
        )
        grad_qkv = qkv.copy()  # in the memory and dtype of qkv; every entry is overwritten
        for target, part in zip(_split_heads(grad_qkv, num_heads), grads[:3], strict=True):
            target[...] = part
        return (grad_qkv,)

    return output.reshape(qkv.shape[0], qkv.shape[1] // 3), pullback


@differentiable(_self_attention_with_pullback)
def self_attention(
    qkv: Any, *, num_heads: int, cu_seqlens: Any, attentions: list | None = None, compute_dtype: str | None = None
) -> Any:
    """Scaled dot-product attention within each packed sequence.

    Args:
        qkv: query, key and value side by side, (tokens, 3 * hidden).
        num_heads: heads that divide the hidden size.
        cu_seqlens: int32 offsets, (sequences + 1,).
        attentions: a list to which the probabilities are appended, (sequences, heads, longest, longest).
        compute_dtype: as for `kernels.attention`; not while a tape records.

    Returns:
        (tokens, hidden).
    """
    heads = _split_heads(qkv, num_heads)
    options = {"cu_seqlens": cu_seqlens, "compute_dtype": compute_dtype}
    if attentions is None:
        output = kernels.attention(*heads, **options)
    else:
        output, probabilities = kernels.attention(*heads, **options, return_probs=True)
        attentions.append(probabilities)
    return output.reshape(qkv.shape[0], qkv.shape[1] // 3)


def _cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        return (kernels.cross_entropy_backward(grad, logits, labels),)

    return kernels.cross_entropy(logits, labels), pullback


@differentiable(_cross_entropy_with_pullback)
def cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`."""
    return kernels.cross_entropy(logits, labels)
