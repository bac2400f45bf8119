"""Dropout on the CPU: factors for a run of elements, which stay in the first-level cache, then the products."""

from .._numba import empty, parallel_kernel
from .._numba.dropout import FIRST_ROW, drop_and_add_line, drop_line, dropping, keep_factors
from .._numba.rows import flat, or_empty, share, task_count
from .._numba.simd import pointer

GRAIN = 1 << 14
RUN = 1024


def dropout(input, p, seed, residual):
    """Return `input` with elements dropped, plus `residual`."""
    output, dtype = empty(input.shape, input.dtype), input.dtype
    if output.size:
        tasks = task_count(output.size, GRAIN)
        arrays = flat(input), or_empty(residual, dtype), output.reshape(-1)
        _forward(*arrays, *dropping(p, seed, tasks, RUN, dtype), tasks)
    return output


def dropout_backward(grad_output, p, seed):
    """Return the gradient of the dropout input from the gradient of its output."""
    return dropout(grad_output, p, seed, None)


@parallel_kernel
def _forward(x, residual, out, seed, threshold, factor, factors, task, tasks):
    runs = (x.size + RUN - 1) // RUN
    for run in range(share(runs, task, tasks), share(runs, task + 1, tasks)):
        at, count = run * RUN, min(RUN, x.size - run * RUN)
        kept = keep_factors(seed, FIRST_ROW, threshold, factor, factors[task], at, count)
        if residual.size:
            drop_and_add_line(pointer(x, at), kept, pointer(residual, at), pointer(out, at), count)
        else:
            drop_line(pointer(x, at), kept, pointer(out, at), count)
