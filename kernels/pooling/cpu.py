"""Pooling on the CPU: the definition's sums, which NumPy computes in vectors."""

from . import reference


def pooling(input, cu_seqlens, mode, skipped, dtype):
    """Return (sequences, width) of `dtype`, from (tokens, width) and (sequences + 1,) offsets."""
    return reference.pooling(input, cu_seqlens, mode, skipped, dtype)


def pooling_backward(grad_output, input, cu_seqlens, mode, skipped):
    """Return the gradient of (tokens, width) from that of (sequences, width)."""
    return reference.pooling_backward(grad_output, input, cu_seqlens, mode, skipped)
