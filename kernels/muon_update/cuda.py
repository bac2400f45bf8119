"""One step of Muon on CUDA, float32; the definition is in reference.py.

Matrices of one shape are one batch: 15 launches for their products, 3 for the rest.
"""

import numpy as np

from .. import _cuda
from .._cuda import cublaslt
from .._cuda.elements import table_of
from .reference import COEFFICIENTS, EPS, STEPS, rate_of

INSTANTIATIONS = "move_momentum", "normalise", "move_matrix"
KERNELS = _cuda.Source(__file__, "muon_update.cu", INSTANTIATIONS)
MOST_AT_ONCE = 1 << 25  # elements of the matrices of a batch, whose products take up to four times their memory


def muon_update(sets, lr, beta, weight_decay, grad_scale):
    """Update matrices and their momenta in place; `sets` has (parameter, grad, momentum) of each."""
    xp, by_shape = _cuda.array_module(sets[0][0]), {}
    for parameter, grad, momentum in sets:
        if parameter.size:
            by_shape.setdefault(parameter.shape, []).append((parameter, xp.ascontiguousarray(grad), momentum))
    kept = np.float32(1 - lr * weight_decay)
    for shape, alike in by_shape.items():
        at_once = max(1, MOST_AT_ONCE // (shape[0] * shape[1]))
        for first in range(0, len(alike), at_once):
            _update(xp, alike[first : first + at_once], beta, kept, np.float32(rate_of(shape, lr)), grad_scale)


def _update(xp, sets, beta, kept, rate, grad_scale):
    """Update matrices of one shape, whose values first decay by the factor `kept`."""
    directions, x = xp.empty((2, len(sets), *sets[0][0].shape), np.float32)
    table = table_of([(*arrays, direction) for arrays, direction in zip(sets, directions, strict=True)])
    sums = xp.empty(table.chunks, np.float64)
    table.launch(KERNELS, "move_momentum", np.float32(beta), np.float32(1 - beta), grad_scale, sums)
    table.launch(KERNELS, "normalise", sums, np.double(EPS), directions, x)
    _orthogonalize(xp, x, directions)
    table.launch(KERNELS, "move_matrix", kept, rate, grad_scale)


def _orthogonalize(xp, x, output):
    """Write the orthogonalised matrices of `x`, (matrices, rows, columns), to `output`; `x` is overwritten, too."""
    a, b, c = COEFFICIENTS
    matrices, rows, columns = x.shape
    is_tall, least = rows > columns, min(rows, columns)
    squares, factor = xp.empty((2, matrices, least, least), np.float32)
    for _ in range(STEPS):  # an odd number: the last one writes `output`
        cublaslt.multiply(squares, x, x, transpose_left=is_tall, transpose_right=not is_tall)
        cublaslt.multiply(factor, squares, squares, alpha=c, addend=squares, beta=b)
        cublaslt.multiply(output, *((x, factor) if is_tall else (factor, x)), addend=x, beta=a)
        x, output = output, x
