"""The LSTM on the CPU: a step computes all sequences of a task together, longest first, by tiles of vectors.

The recurrent weight is packed into panels once. Directions, and shares of the sequences, are separate tasks: no thread
waits for another between steps.
"""

import numpy as np

from .._numba import LEVEL, as_kernel_array, helper, num_threads, parallel_kernel
from .._numba.products.blocks import TILE_ROWS, multiply
from .._numba.products.panels import pack_panel
from .._numba.rows import flat, rounded_up, share, task_count
from .._numba.simd import broadcast, first_lanes, lanes, load_masked, pointer, store_masked
from .._numba.simd.math import exp, tanh
from ..linear.cpu import linear_weight_gradient
from . import reference

GRAIN = 1 << 18  # multiplications
VECTORS = 2  # of a panel


def lstm(input, weight, cu_seqlens):
    """Return the output, (tokens, directions * hidden), the gates and the cells."""
    directions, units, hidden = weight.shape
    tokens, dtype = len(input), input.dtype
    gates, cells = np.empty((tokens, directions * units), dtype), np.empty((tokens, directions * hidden), dtype)
    output = np.empty_like(cells)
    if output.size:
        panels, texts = _packed(weight, hidden, units, True), _longest_first(cu_seqlens)
        jobs, tasks, scratch = _plan(weight, len(texts[0]), tokens)
        _run(flat(input), panels, texts, jobs, gates.reshape(-1), cells.reshape(-1), output.reshape(-1), scratch, tasks)
    return output, gates, cells


def lstm_backward(grad_output, weight, cu_seqlens, output, gates, cells):
    """Return the gradients of input and weight."""
    directions, units, hidden = weight.shape
    grad_input, grad_weight = np.empty(gates.shape, gates.dtype), np.zeros(weight.shape, weight.dtype)
    if not output.size:
        return grad_input, grad_weight
    panels, texts = _packed(weight, units, hidden, False), _longest_first(cu_seqlens)
    jobs, tasks, scratch = _plan(weight, len(texts[0]), len(gates))
    arrays = flat(grad_output), panels, texts, jobs, flat(gates), flat(cells)
    _run_backward(*arrays, grad_input.reshape(-1), scratch, tasks)
    for direction in range(directions):
        before = reference.previous_rows(cu_seqlens, len(output), direction)
        own = output[:, direction * hidden : (direction + 1) * hidden]
        last = np.where(before[:, None] >= 0, own[before], np.zeros((), own.dtype))
        grads = as_kernel_array(grad_input[:, direction * units : (direction + 1) * units])
        grad_weight[direction] = linear_weight_gradient(grads, last, last.dtype, None)
    return grad_input, grad_weight


def _longest_first(cu_seqlens):
    """Return the first tokens and the lengths of the sequences with tokens, longest first."""
    lengths = np.diff(cu_seqlens)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    return cu_seqlens[:-1][order].astype(np.int64), lengths[order].astype(np.int64)


def _plan(weight, sequences, tokens):
    """Return the number of jobs (a share of the sequences in one direction), the tasks, and their scratch."""
    directions, units, hidden = weight.shape
    groups = max(1, min(sequences, num_threads() // directions))
    rows, width, jobs = -(-sequences // groups) + TILE_ROWS, _width(weight.dtype), groups * directions
    tasks = min(task_count(2 * tokens * weight.size, GRAIN), jobs)
    return jobs, tasks, np.zeros((tasks, rows * (units + 2 * hidden + width)), weight.dtype)


def _width(dtype):
    return VECTORS * LEVEL.vector_bytes // dtype.itemsize


def _packed(weight, depth, columns, is_transposed):
    """Return the weight of each direction, or its transpose, as panels (directions, panels, depth, width)."""
    width = _width(weight.dtype)
    panels = np.zeros((len(weight), -(-columns // width), depth, width), weight.dtype)
    strides = (depth, 1) if is_transposed else (1, columns)
    _pack(flat(weight), depth, columns, *strides, panels, task_count(weight.size, GRAIN))
    return panels


@parallel_kernel
def _pack(weight, depth, columns, column_stride, depth_stride, panels, task, tasks):
    count, width = panels.shape[1], panels.shape[3]
    for p in range(share(len(panels) * count, task, tasks), share(len(panels) * count, task + 1, tasks)):
        direction, first = p // count, p % count * width
        source = pointer(weight, direction * depth * columns + first * column_stride)
        target = pointer(panels, p * depth * width)
        pack_panel(source, column_stride, depth_stride, min(columns - first, width), depth, target, width)


@helper
def _product(left, left_row, rows, panels, direction, right_columns, out, out_row):
    """Multiply rows by the panels of a direction; whole tiles of `out` are written."""
    depth, width = panels.shape[2], panels.shape[3]
    for p in range(panels.shape[1]):
        right = pointer(panels, (direction * panels.shape[1] + p) * depth * width)
        columns = min(width, right_columns - p * width)
        multiply(left, left_row, 1, rows, right, width, depth, columns, pointer(out, p * width), out_row, False)


@helper
def _active(lengths, group, groups, step):
    """Return how many sequences of a group are longer than `step`."""
    count = 0
    while group + count * groups < len(lengths) and lengths[group + count * groups] > step:
        count += 1
    return count


@helper
def _sigmoid(x):
    return 1.0 / (exp(-x) + 1.0)


@helper
def _cell(x, known, width, is_first, before, gates, cells, output, state):
    """Compute one token in one direction; `known` is the product of the last hidden state, `before` the last cell."""
    for j in range(0, width, lanes(x)):
        mask = first_lanes(x, width - j)
        i = _sigmoid(load_masked(x, j, mask, 0.0) + load_masked(known, j, mask, 0.0))
        f = _sigmoid(load_masked(x, width + j, mask, 0.0) + load_masked(known, width + j, mask, 0.0))
        g = tanh(load_masked(x, 2 * width + j, mask, 0.0) + load_masked(known, 2 * width + j, mask, 0.0))
        o = _sigmoid(load_masked(x, 3 * width + j, mask, 0.0) + load_masked(known, 3 * width + j, mask, 0.0))
        cell = i * g
        if not is_first:
            cell = f * load_masked(before, j, mask, 0.0) + cell
        hidden = o * tanh(cell)
        store_masked(gates, j, i, mask)
        store_masked(gates, width + j, f, mask)
        store_masked(gates, 2 * width + j, g, mask)
        store_masked(gates, 3 * width + j, o, mask)
        store_masked(cells, j, cell, mask)
        store_masked(output, j, hidden, mask)
        store_masked(state, j, hidden, mask)


@parallel_kernel
def _run(x, panels, texts, jobs, gates, cells, output, scratch, task, tasks):
    directions, _, hidden, width = panels.shape
    (starts, lengths), groups, units, row = texts, jobs // directions, 4 * hidden, rounded_up(4 * hidden, width)
    for job in range(share(jobs, task, tasks), share(jobs, task + 1, tasks)):
        direction, group = job % directions, job // directions
        most = (len(lengths) - group + groups - 1) // groups
        known = pointer(scratch, task * scratch.shape[1])
        state = pointer(known, rounded_up(most, TILE_ROWS) * row)
        for k in range(most * hidden):
            state[k] = 0.0
        for step in range(lengths[group]):
            count = _active(lengths, group, groups, step)
            _product(state, hidden, count, panels, direction, units, known, row)
            for k in range(count):
                sequence = group + k * groups
                at = starts[sequence] + (step if direction == 0 else lengths[sequence] - 1 - step)
                before = at if step == 0 else at - 1 if direction == 0 else at + 1
                place = at * directions + direction
                _cell(
                    pointer(x, place * units), pointer(known, k * row), hidden, step == 0,
                    pointer(cells, (before * directions + direction) * hidden), pointer(gates, place * units),
                    pointer(cells, place * hidden), pointer(output, place * hidden), pointer(state, k * hidden),
                )  # fmt: skip


@helper
def _cell_backward(grad, of_later, of_cell, gates, cells, before, is_first, width, grad_input, copy):
    """Compute the gradient of one token's gates, also into `copy`, and in `of_cell` that of the cell before it."""
    for j in range(0, width, lanes(grad)):
        mask = first_lanes(grad, width - j)
        i, f = load_masked(gates, j, mask, 0.0), load_masked(gates, width + j, mask, 0.0)
        g, o = load_masked(gates, 2 * width + j, mask, 0.0), load_masked(gates, 3 * width + j, mask, 0.0)
        last = broadcast(grad, 0.0)
        if not is_first:
            last = load_masked(before, j, mask, 0.0)
        of_output = load_masked(grad, j, mask, 0.0) + load_masked(of_later, j, mask, 0.0)
        cell = tanh(load_masked(cells, j, mask, 0.0))
        total = of_output * o * (1.0 - cell * cell) + load_masked(of_cell, j, mask, 0.0)
        store_masked(of_cell, j, total * f, mask)
        parts = (
            total * g * i * (1.0 - i), total * last * f * (1.0 - f),
            total * i * (1.0 - g * g), of_output * cell * o * (1.0 - o),
        )  # fmt: skip
        for part in range(4):
            store_masked(grad_input, part * width + j, parts[part], mask)
            store_masked(copy, part * width + j, parts[part], mask)


@parallel_kernel
def _run_backward(grad, panels, texts, jobs, gates, cells, grad_input, scratch, task, tasks):
    directions, _, units, width = panels.shape
    (starts, lengths), groups, hidden, row = texts, jobs // directions, units // 4, rounded_up(units // 4, width)
    for job in range(share(jobs, task, tasks), share(jobs, task + 1, tasks)):
        direction, group = job % directions, job // directions
        most = (len(lengths) - group + groups - 1) // groups
        of_later = pointer(scratch, task * scratch.shape[1])
        of_cell = pointer(of_later, rounded_up(most, TILE_ROWS) * row)
        copy = pointer(of_cell, most * hidden)
        known = 0
        for step in range(lengths[group] - 1, -1, -1):
            count = _active(lengths, group, groups, step)
            for k in range(known, count):  # sequences that end here
                for j in range(hidden):
                    of_later[k * row + j] = 0.0
                    of_cell[k * hidden + j] = 0.0
            known = count
            for k in range(count):
                sequence = group + k * groups
                at = starts[sequence] + (step if direction == 0 else lengths[sequence] - 1 - step)
                before = at if step == 0 else at - 1 if direction == 0 else at + 1
                place = at * directions + direction
                _cell_backward(
                    pointer(grad, place * hidden), pointer(of_later, k * row), pointer(of_cell, k * hidden),
                    pointer(gates, place * units), pointer(cells, place * hidden),
                    pointer(cells, (before * directions + direction) * hidden), step == 0, hidden,
                    pointer(grad_input, place * units), pointer(copy, k * units),
                )  # fmt: skip
            _product(copy, units, count, panels, direction, hidden, of_later, row)
