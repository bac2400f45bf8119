"""Pooling of packed sequences, with x_1 .. x_n the tokens of a sequence that count.

    mean                  (x_1 + .. + x_n) / n
    mean_sqrt_len_tokens  (x_1 + .. + x_n) / sqrt(n)
    weightedmean          (w_1 x_1 + .. + w_n x_n) / (w_1 + .. + w_n), w the token's position in the sequence, from 1
    cls, lasttoken        x_1, x_n
    max                   the largest of each column

and zeros where n is 0. The definitions are those of sentence-transformers' Pooling module.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def pooling(input, cu_seqlens, mode, skipped, dtype):
    """Return (sequences, width) of `dtype`, from (tokens, width) and (sequences + 1,) offsets."""
    x = widen(input)
    output = np.zeros((len(cu_seqlens) - 1, x.shape[1]), x.dtype)
    for sequence, (first, last) in enumerate(counted(cu_seqlens, mode, skipped)):
        if first == last:
            continue
        if mode == "max":
            output[sequence] = x[first:last].max(axis=0)
        else:
            weights, divisor = weights_of(mode, last - first, skipped, x.dtype)
            output[sequence] = (x[first:last] if weights is None else x[first:last] * weights).sum(axis=0) / divisor
    return output.astype(dtype, copy=False)


@ieee_arithmetic
def pooling_backward(grad_output, input, cu_seqlens, mode, skipped):
    """Return the gradient of (tokens, width) from that of (sequences, width)."""
    x, grad = widen(input), widen(grad_output)
    grad_input = np.zeros(x.shape, x.dtype)
    for sequence, (first, last) in enumerate(counted(cu_seqlens, mode, skipped)):
        if first == last:
            continue
        if mode == "max":
            columns = np.arange(x.shape[1])
            grad_input[first + x[first:last].argmax(axis=0), columns] = grad[sequence]
        else:
            weights, divisor = weights_of(mode, last - first, skipped, x.dtype)
            grad_input[first:last] = grad[sequence] / divisor * (1 if weights is None else weights)
    return grad_input.astype(input.dtype, copy=False)


def counted(cu_seqlens, mode, skipped):
    """Return (first, last) of the tokens of each sequence that count; "cls" and "lasttoken" count one."""
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        first = min(start + skipped, stop)
        if mode == "cls":
            yield first, min(first + 1, stop)
        else:
            yield max(first, stop - 1) if mode == "lasttoken" else first, stop


def weights_of(mode, count, skipped, dtype):
    """Return ((count, 1) weights of the tokens that count, or None for ones; the divisor of the sum)."""
    if mode == "weightedmean":
        weights = np.arange(skipped + 1, skipped + count + 1, dtype=dtype)[:, None]
        return weights, weights.sum()
    return None, count**0.5 if mode == "mean_sqrt_len_tokens" else count
