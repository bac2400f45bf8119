"""One step of Muon on the CPU, with two thirds of the definition's multiply-adds for squares, a third for 1 by 4.

In a step the definition multiplies x by a factor a + b g + c g^2 of its Gram matrix g = x x'. The factors of all steps
are polynomials of the first g, so they commute: here a step updates g and the product q of the factors so far, and x
is multiplied by q at the end. All but this product are symmetric: blocks below the diagonal are computed and mirrored.

Matrices are stored in panels, (panels, depth, width): element (k, i) of panel p is x[p width + i, k]. Both operands of
a product are read in this order, and a symmetric matrix has the same panels as its transpose.
"""

import math

import numpy as np

from .._numba import LEVEL, addresses_of, as_kernel_array, empty, helper, kernel, num_threads, parallel_kernel, region
from .._numba.products.panels import pack_panel
from .._numba.products.tile import COLUMN_PANEL_VECTORS, COLUMN_TILE_ROWS, make_tile, transpose_block
from .._numba.rows import share
from .._numba.simd import itemsize, lanes, load, pointer, pointer_at, store
from ..clip_norm.cpu import joint_norm
from .reference import COEFFICIENTS, EPS, STEPS, rate_of

PART = 256  # of the depth that a task packs, or multiplies by a panel, at once

_tile, _narrow_tile = (make_tile(COLUMN_TILE_ROWS, vectors) for vectors in (COLUMN_PANEL_VECTORS, 1))


def muon_update(sets, lr, beta, weight_decay, grad_scale):
    """Update matrices and their momenta in place; `sets` has (parameter, grad, momentum) of each."""
    grad_scale = 1.0 if grad_scale is None else float(grad_scale)
    if not math.isfinite(grad_scale):
        return
    dtype, tasks = sets[0][0].dtype, num_threads()
    coefficients, momentum_numbers = np.array(COEFFICIENTS, dtype), np.array([beta, 1 - beta, grad_scale], dtype)
    width = math.lcm(COLUMN_TILE_ROWS, COLUMN_PANEL_VECTORS * LEVEL.vector_bytes // dtype.itemsize)
    for parameter, grad, momentum in sets:
        if not parameter.size:
            continue
        grad = grad if grad.flags.carray else as_kernel_array(grad)
        addresses, direction = np.array(addresses_of((parameter, grad, momentum))), empty(parameter.shape, dtype)
        _move_momentum(addresses, direction, momentum_numbers, tasks)
        numbers = 1 / max(float(joint_norm([direction])), EPS), 1 - lr * weight_decay, rate_of(parameter.shape, lr)
        size, depth = min(parameter.shape), max(parameter.shape)
        panels, whole_depth = -(-size // width), -(-depth // COLUMN_TILE_ROWS) * COLUMN_TILE_ROWS
        x = empty((2, panels, whole_depth, width), dtype)
        squares = empty((4, panels, panels * width, width), dtype)
        _move_matrix(addresses, direction, np.array(numbers, dtype), x, squares, coefficients, tasks)


@parallel_kernel
def _move_momentum(addresses, direction, numbers, task, tasks):
    """Update the momentum, and write the direction; `numbers` are beta, 1 - beta and the scale of the gradient."""
    beta, taken, scale = numbers
    g, m, d = pointer_at(addresses[1], direction), pointer_at(addresses[2], direction), pointer(direction, 0)
    for i in range(share(direction.size, task, tasks), share(direction.size, task + 1, tasks)):
        part = taken * (g[i] * scale)
        m[i] = m[i] * beta + part
        d[i] = part + beta * m[i]


@kernel(regions=True)
def _move_matrix(addresses, direction, numbers, x, squares, coefficients, tasks):
    """Orthogonalize the direction and move the parameter; x and squares are scratch.

    `numbers` are the inverse of the direction's norm, the share of the parameter that is kept, and the rate.
    """
    size, depth = min(direction.shape), max(direction.shape)
    gram, factor, joint, spare = squares[0], squares[1], squares[2], squares[3]
    _pack(direction, numbers[0], x[0], tasks)
    _multiply_symmetric(x[0], x[0], depth, gram, gram, coefficients, False, tasks)
    for step in range(STEPS):
        _multiply_symmetric(gram, gram, size, factor, gram, coefficients, True, tasks)
        if step < STEPS - 1:
            _multiply_symmetric(factor, gram, size, spare, gram, coefficients, False, tasks)
            _multiply_symmetric(factor, spare, size, gram, gram, coefficients, False, tasks)
        if step == 0:
            joint, factor = factor, joint
        else:
            _multiply_symmetric(factor, joint, size, spare, gram, coefficients, False, tasks)
            joint, spare = spare, joint
    _multiply(x[0], joint, depth, x[1], tasks)
    _subtract(addresses[0], direction.shape, x[1], numbers, tasks)


@region
def _pack(direction, inverse, x, task, tasks):
    """Write the rows, or the columns if they are fewer, times `inverse` as panels, with zeros for missing ones."""
    (rows, columns), (panels, _, width) = direction.shape, x.shape
    size, depth = min(rows, columns), max(rows, columns)
    row, column = (columns, 1) if rows <= columns else (1, columns)
    parts = (depth + PART - 1) // PART
    for part in range(share(panels * parts, task, tasks), share(panels * parts, task + 1, tasks)):
        p, k = part // parts, part % parts * PART
        count, inside = min(PART, depth - k), min(width, size - p * width)
        source, target = pointer(direction, p * width * row + k * column), pointer(x, (p * x.shape[1] + k) * width)
        pack_panel(source, row, column, inside, count, target, width)
        for at in range(count * width):
            target[at] = target[at] * inverse if at % width < inside else 0


@region
def _multiply_symmetric(left, right, depth, output, gram, coefficients, is_factor, task, tasks):
    """Compute output = left @ right', which is symmetric; as a factor a + b gram + c left @ right'."""
    panels, block = output.shape[0], 0
    count = panels * (panels + 1) // 2
    first, last = share(count, task, tasks), share(count, task + 1, tasks)
    for i in range(panels):
        for j in range(i + 1):
            if first <= block < last:
                _multiply_block(left, right, depth, output, i, j)
                if is_factor:
                    _combine(output, gram, coefficients, i, j)
                _mirror(output, i, j)
            block += 1


@helper
def _multiply_block(left, right, depth, output, i, j):
    """Compute rows i width to (i + 1) width of panel j, on the diagonal without what lies above it."""
    width = output.shape[2]
    x, y = pointer(left, i * left.shape[1] * width), pointer(right, j * right.shape[1] * width)
    c = pointer(output, (j * output.shape[1] + i * width) * width)
    for first in range(0, width, COLUMN_TILE_ROWS):
        a, end, last = pointer(x, first), width if i > j else first + COLUMN_TILE_ROWS, COLUMN_TILE_ROWS - 1
        for column in range(0, end, COLUMN_PANEL_VECTORS * lanes(c)):
            b, sums = pointer(y, column), pointer(c, first * width + column)
            if end - column <= lanes(c):
                _narrow_tile(a, 1, width, last, b, width, depth, sums, width, False)
            else:
                _tile(a, 1, width, last, b, width, depth, sums, width, False)


@helper
def _combine(output, gram, coefficients, i, j):
    """Make c output + b gram + a of a block, with a on the diagonal alone."""
    (a, b, c), width = coefficients, output.shape[2]
    at = (j * output.shape[1] + i * width) * width
    sums, before = pointer(output, at), pointer(gram, at)
    for k in range(0, width * width, lanes(sums)):
        store(sums, k, load(sums, k) * c + load(before, k) * b)
    if i == j:
        for k in range(0, width * width, width + 1):
            sums[k] += a


@helper
def _mirror(output, i, j):
    """Write the transpose of block i of panel j as block j of panel i; of a block on the diagonal, its lower half.

    Without it, the two halves would differ by rounding, and in five steps the difference grows a thousandfold.
    """
    width = output.shape[2]
    source = pointer(output, (j * output.shape[1] + i * width) * width)
    target = pointer(output, (i * output.shape[1] + j * width) * width)
    for row in range(0, width, lanes(source)):
        for column in range(0, width if i > j else row, lanes(source)):
            block, transpose = pointer(source, row * width + column), pointer(target, column * width + row)
            transpose_block(block, width, lanes(source) - 1, transpose, width)
        if i == j:
            for k in range(row, row + lanes(source)):
                for column in range(row, k):
                    source[column * width + k] = source[k * width + column]


@region
def _multiply(x, factor, depth, output, task, tasks):
    """Compute output = factor @ x, both in panels; x has `depth` columns."""
    panels, rows, width = x.shape
    parts = (depth + PART - 1) // PART
    for part in range(share(panels * parts, task, tasks), share(panels * parts, task + 1, tasks)):
        p, first = part // parts, part % parts * PART
        for k in range(first, min(first + PART, depth), COLUMN_TILE_ROWS):
            last = min(COLUMN_TILE_ROWS, depth - k) - 1
            for column in range(0, width, COLUMN_PANEL_VECTORS * lanes(x)):
                c = pointer(output, (p * rows + k) * width + column)
                for q in range(panels):
                    a = pointer(x, (q * rows + k) * width)
                    b = pointer(factor, (p * factor.shape[1] + q * width) * width + column)
                    _tile(a, width, 1, last, b, width, width, c, width, q > 0)


@region
def _subtract(address, shape, x, numbers, task, tasks):
    """Compute kept * matrix - rate * x, or with the transpose of x if the matrix has more rows than columns."""
    (rows, columns), (panels, depth, width), (_, kept, rate) = shape, x.shape, numbers
    for i in range(share(rows, task, tasks), share(rows, task + 1, tasks)):
        y = pointer_at(address + i * columns * itemsize(x), x)
        if rows <= columns:
            row = pointer(x, i // width * depth * width + i % width)
            for k in range(columns):
                y[k] = y[k] * kept - rate * row[k * width]
            continue
        for p in range(panels):
            row, own = pointer(x, (p * depth + i) * width), pointer(y, p * width)
            for k in range(min(width, columns - p * width)):
                own[k] = own[k] * kept - rate * row[k]
