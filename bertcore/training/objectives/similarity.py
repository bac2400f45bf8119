"""Losses of vectors, each with its gradient: plain functions of float64 arrays of NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Callable

from bertcore import kernels
from bertcore.kernels.arrays import Array

Pullback = Callable[[Array], tuple[Array, ...]]

SHORTEST = 1e-12  # the least divisor, as in torch.nn.functional.normalize


def normalized(rows: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return vectors (..., dim) of length 1, and the function from their gradient to that of `rows`."""
    xp = kernels.array_module(rows)
    lengths = xp.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    divisor = xp.maximum(lengths, SHORTEST)
    unit = rows / divisor

    def pullback(grad):
        along = (grad * unit).sum(axis=-1, keepdims=True) * (lengths > SHORTEST)
        return (grad - along * unit) / divisor

    return unit, pullback


def cosines(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the cosine of each row of `left` with that of `right`, (rows,), and the pullback to both."""
    (unit, of_left), (other, of_right) = normalized(left), normalized(right)
    return (unit * other).sum(axis=-1), lambda grad: (of_left(grad[:, None] * other), of_right(grad[:, None] * unit))


def dot_products(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the dot products of rows, as `cosines` does."""
    return (left * right).sum(axis=-1), lambda grad: (grad[:, None] * right, grad[:, None] * left)


def cosine_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return 1 - cosine, as `cosines` does."""
    found, pullback = cosines(left, right)
    return 1 - found, lambda grad: pullback(-grad)


def euclidean_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the lengths of the rows' differences, as `cosines` does; equal rows have no gradient."""
    difference = left - right
    xp = kernels.array_module(left)
    lengths = xp.sqrt((difference * difference).sum(axis=-1))

    def pullback(grad):
        part = (grad / xp.where(lengths > 0, lengths, 1))[:, None] * difference
        return part, -part

    return lengths, pullback


def manhattan_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the sums of the rows' absolute differences, as `cosines` does."""
    difference = left - right
    xp = kernels.array_module(left)

    def pullback(grad):
        part = grad[:, None] * xp.sign(difference)
        return part, -part

    return xp.abs(difference).sum(axis=-1), pullback


DISTANCES = {"euclidean": euclidean_distances, "cosine": cosine_distances, "manhattan": manhattan_distances}


def ranking_loss(scores: Array) -> tuple[Array, Array]:
    """Return the mean cross entropy of each row's softmax and its own index, and the gradient of `scores`.

    `scores` are (rows, candidates): row i should choose candidate i.
    """
    xp = kernels.array_module(scores)
    rows = xp.arange(len(scores))
    shifted = scores - scores.max(axis=1, keepdims=True)
    exponentials = xp.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    grad = exponentials / totals
    grad[rows, rows] -= 1
    return (xp.log(totals[:, 0]) - shifted[rows, rows]).mean(), grad / len(scores)


def ordering_loss(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return log(1 + sum of exp(scores_i - scores_j) over all pairs with labels_i < labels_j), and its gradient.

    `scores` and `labels` are (rows,) each (Su 2022, https://kexue.fm/archives/8847).
    """
    xp = kernels.array_module(scores)
    differences = xp.where(labels[:, None] < labels, scores[:, None] - scores, -xp.inf)
    peak = xp.maximum(differences.max(), 0)  # the 1 is exp(0)
    exponentials = xp.exp(differences - peak)
    total = exponentials.sum() + xp.exp(-peak)
    weights = exponentials / total
    return peak + xp.log(total), weights.sum(axis=1) - weights.sum(axis=0)
