"""One step of Adam's family on the CPU: AdamW in one pass over the four arrays, at the speed of memory.

The other rules sum over the whole parameter before they know their rate, and take two. The sums are taken within blocks
of BLOCK elements, then over the blocks in order, so that they do not depend on the number of threads.
"""

import numpy as np

from .._numba import helper, inline_helper, parallel_kernel
from .._numba.rows import flat, share, task_count
from .numbers import Numbers

GRAIN = 1 << 14
BLOCK = 4096
LANES = 16  # sums side by side, which LLVM keeps in vectors


def adam_update(parameter, grad, first_moment, second_moment, lr, betas, eps, weight_decay, step, rule):
    """Update `parameter` and its moments in place."""
    arrays = [array.reshape(-1) for array in (parameter, first_moment, second_moment)]
    tasks, count = task_count(parameter.size, GRAIN), parameter.size
    numbers = Numbers.at_step(parameter.dtype, lr, betas, eps, weight_decay, step)
    if rule == "adamw":
        _update(*arrays, flat(grad), numbers, tasks)
        return
    partial = np.zeros((-(-count // BLOCK), 2, LANES))
    _move_moments(*arrays, flat(grad), numbers, rule == "lamb", partial, tasks)
    left, right = partial.sum(axis=(0, 2)).tolist()
    if rule == "lamb":
        lr = lr * (left / right) ** 0.5 if left > 0 and right > 0 else lr
    elif count:
        lr = lr / max(1.0, (left / count) ** 0.5)
    _move_parameter(*arrays, numbers._replace(lr=parameter.dtype.type(lr)), tasks)


@inline_helper
def _step_of(parameter, m, v, numbers):
    """The update of one element."""
    return numbers.scale1 * m / (np.sqrt(v) * numbers.scale2 + numbers.eps) + numbers.weight_decay * parameter


@parallel_kernel
def _update(parameter, first, second, grad, numbers, task, tasks):
    for i in range(share(parameter.size, task, tasks), share(parameter.size, task + 1, tasks)):
        g = grad[i]
        m = numbers.keep1 * first[i] + numbers.take1 * g
        v = numbers.keep2 * second[i] + numbers.take2 * (g * g)
        first[i], second[i] = m, v
        parameter[i] -= numbers.lr * _step_of(parameter[i], m, v, numbers)


@helper
def _move_block(parameter, first, second, grad, numbers, is_lamb, sums, start, end):
    for i in range(start, end):
        g, p = grad[i], parameter[i]
        m = numbers.keep1 * first[i] + numbers.take1 * g
        v = numbers.keep2 * second[i] + numbers.take2 * (g * g)
        first[i], second[i] = m, v
        if is_lamb:
            update = np.float64(_step_of(p, m, v, numbers))
            sums[0, i % LANES] += np.float64(p) * p
            sums[1, i % LANES] += update * update
        else:
            root = max(np.sqrt(v) * numbers.scale2, numbers.eps)
            ratio = np.float64(g / root if root > 0 else root)
            sums[0, i % LANES] += ratio * ratio


@parallel_kernel
def _move_moments(parameter, first, second, grad, numbers, is_lamb, partial, task, tasks):
    """The moments, and in `partial` the sums over each block: |parameter|^2 and |u|^2, or of g^2 / max(v', eps^2)."""
    blocks = len(partial)
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        end = min((block + 1) * BLOCK, parameter.size)
        _move_block(parameter, first, second, grad, numbers, is_lamb, partial[block], block * BLOCK, end)


@parallel_kernel
def _move_parameter(parameter, first, second, numbers, task, tasks):
    for i in range(share(parameter.size, task, tasks), share(parameter.size, task + 1, tasks)):
        parameter[i] -= numbers.lr * _step_of(parameter[i], first[i], second[i], numbers)
