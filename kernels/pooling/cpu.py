"""Pooling on the CPU: sums over tokens in vectors, one sequence after the other; other modes use the definition."""

from .._numba import as_kernel_array, empty, parallel_kernel
from .._numba.rows import add_lines, flat, share, task_count
from .._numba.simd import wide_pointer
from . import reference

GRAIN = 1 << 16
MEAN, SQRT, FIRST, LAST = range(4)
SUMS = {"mean": MEAN, "mean_sqrt_len_tokens": SQRT, "cls": FIRST, "lasttoken": LAST}


def pooling(input, cu_seqlens, mode, skipped, dtype):
    """Return (sequences, width) of `dtype`, from (tokens, width) and (sequences + 1,) offsets."""
    if mode not in SUMS:
        return reference.pooling(input, cu_seqlens, mode, skipped, dtype)
    output = empty((len(cu_seqlens) - 1, input.shape[1]), input.dtype)
    if output.size:
        tasks = task_count(input.size, GRAIN)
        skipped = min(skipped, len(input))  # so that its sum with an offset does not overflow
        _pool(flat(input), as_kernel_array(cu_seqlens), SUMS[mode], skipped, output, tasks)
    return output.astype(dtype, copy=False)


def pooling_backward(grad_output, input, cu_seqlens, mode, skipped):
    """Return the gradient of (tokens, width) from that of (sequences, width)."""
    return reference.pooling_backward(grad_output, input, cu_seqlens, mode, skipped)


@parallel_kernel
def _pool(x, offsets, mode, skipped, output, task, tasks):
    sequences, width = output.shape
    for sequence in range(share(sequences, task, tasks), share(sequences, task + 1, tasks)):
        first, last = min(offsets[sequence] + skipped, offsets[sequence + 1]), offsets[sequence + 1]
        if mode == FIRST:
            last = min(first + 1, last)
        elif mode == LAST:
            first = max(first, last - 1)
        row, count = output[sequence], last - first
        row[:] = 0
        total = wide_pointer(row, 0)
        for token in range(first, last):
            add_lines(wide_pointer(x, token * width), total, total, width)
        divisor = x.dtype.type(max(count**0.5 if mode == SQRT else count, 1))
        for c in range(width):
            row[c] /= divisor
