"""Losses of vectors, each with its gradient: plain functions of float64 arrays of NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Callable

from bertcore import kernels
from bertcore.kernels.arrays import Array

Pullback = Callable[[Array], tuple[Array, ...]]

SHORTEST = 1e-12  # the least divisor, as in torch.nn.functional.normalize


def normalized(rows: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return vectors (..., dim) of length 1, and the function from their gradient to the gradient of `rows`."""
    xp = kernels.array_module(rows)
    lengths = xp.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    divisor = xp.maximum(lengths, SHORTEST)
    unit = rows / divisor

    def pullback(grad):
        along = (grad * unit).sum(axis=-1, keepdims=True) * (lengths > SHORTEST)
        return (grad - along * unit) / divisor

    return unit, pullback


def cosines(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the cosine of each row of `left` with the same row of `right`, (rows,), and the pullback to both."""
    (unit, of_left), (other, of_right) = normalized(left), normalized(right)
    return (unit * other).sum(axis=-1), lambda grad: (of_left(grad[:, None] * other), of_right(grad[:, None] * unit))


def first_with_others(columns: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the dot products of the first vector of each example with its others, and the pullback.

    `columns` are (examples, columns, dim), the products (examples, columns - 1).
    """
    xp, first, others = kernels.array_module(columns), columns[:, :1], columns[:, 1:]

    def pullback(grad):
        of_first = (grad[:, :, None] * others).sum(axis=1, keepdims=True)
        return xp.concatenate([of_first, grad[:, :, None] * first], axis=1)

    return (first * others).sum(axis=2), pullback


def cosine_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return 1 - cosine, in the form of `cosines`."""
    found, pullback = cosines(left, right)
    return 1 - found, lambda grad: pullback(-grad)


def euclidean_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the lengths of the rows' differences, in the form of `cosines`; equal rows have no gradient."""
    difference = left - right
    xp = kernels.array_module(left)
    lengths = xp.sqrt((difference * difference).sum(axis=-1))

    def pullback(grad):
        part = (grad / xp.where(lengths > 0, lengths, 1))[:, None] * difference
        return part, -part

    return lengths, pullback


def manhattan_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the sums of the rows' absolute differences, in the form of `cosines`."""
    difference = left - right
    xp = kernels.array_module(left)

    def pullback(grad):
        part = grad[:, None] * xp.sign(difference)
        return part, -part

    return xp.abs(difference).sum(axis=-1), pullback


def angles(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return |cosine + sine| of rows, in the form of `cosines`; a vector's second half is its imaginary part.

    Source: Li and Li 2024, "AoE: Angle-optimized Embeddings for Semantic Textual Similarity".
    """
    (unit, of_left), (other, of_right) = normalized(left), normalized(right)
    middle = (unit.shape[1] + 1) // 2
    rest = unit.shape[1] - middle

    def turned(rows, sign):
        found = rows.copy()
        found[:, :rest] -= sign * rows[:, middle:]
        found[:, middle:] += sign * rows[:, :rest]
        return found

    around = turned(other, 1)
    sums = (unit * around).sum(axis=-1)
    xp = kernels.array_module(left)

    def pullback(grad):
        grad = (grad * xp.sign(sums))[:, None]
        return of_left(grad * around), of_right(turned(grad * unit, -1))

    return xp.abs(sums), pullback


class TripletDistanceMetric:
    """The names of the distances of `TripletLoss`."""

    COSINE, EUCLIDEAN, MANHATTAN = "cosine", "euclidean", "manhattan"


class SiameseDistanceMetric:
    """The names of the distances of `ContrastiveLoss` and `OnlineContrastiveLoss`."""

    COSINE_DISTANCE, EUCLIDEAN, MANHATTAN = "cosine", "euclidean", "manhattan"


class BatchHardTripletLossDistanceFunction:
    """The names of the distances of losses over the triplets of a batch."""

    cosine_distance, euclidean_distance = "cosine", "euclidean"


DISTANCES = {"euclidean": euclidean_distances, "cosine": cosine_distances, "manhattan": manhattan_distances}


def all_cosines(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the cosine of each row of `left` with each of `right`, (rows, rows), and the pullback to both."""
    (unit, of_left), (other, of_right) = normalized(left), normalized(right)
    return unit @ other.T, lambda grad: (of_left(grad @ other), of_right(grad.T @ unit))


def all_products(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the dot product of each row of `left` with each of `right`, (rows, rows), and the pullback to both."""
    return left @ right.T, lambda grad: (grad @ right, grad.T @ left)


def all_cosine_distances(rows: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return 1 - cosine of each row with each, (rows, rows), and the pullback."""
    found, pullback = all_cosines(rows, rows)
    return 1 - found, lambda grad: sum(pullback(-grad))


def all_euclidean_distances(rows: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the distance of each row from each, like `all_cosine_distances`; equal rows have no gradient."""
    xp, products = kernels.array_module(rows), rows @ rows.T
    squares = products.diagonal()
    distances = xp.sqrt(xp.maximum(squares[:, None] - 2 * products + squares, 0))

    def pullback(grad):
        part = xp.where(distances > 0, grad / xp.where(distances > 0, distances, 1), 0)
        part = part + part.T
        return part.sum(axis=1, keepdims=True) * rows - part @ rows

    return distances, pullback


ALL_DISTANCES = {"euclidean": all_euclidean_distances, "cosine": all_cosine_distances}


def squared_error(found: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the mean squared difference and the gradient of `found`."""
    difference = found - wanted
    return (difference**2).mean(), 2 * difference / difference.size


def margin_error(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return the mean squared error of the first score's margins over the others, and the gradient of `scores`.

    `scores` are (examples, 1 + negatives); `labels` have a teacher's margins, (examples, negatives), or all its scores.
    """
    count, negatives = len(scores), scores.shape[1] - 1
    if not negatives:
        raise ValueError("scores has one score per query, expected at least two: the right text's and another's")
    labels = labels.reshape(count, -1)
    if labels.shape[1] == negatives + 1:
        labels = labels[:, :1] - labels[:, 1:]
    if labels.shape[1] != negatives:
        raise ValueError(f"labels has shape {labels.shape}, expected ({count}, {negatives}): one for each negative")
    value, grad = squared_error(scores[:, :1] - scores[:, 1:], labels)
    return value, kernels.array_module(scores).concatenate([grad.sum(axis=1, keepdims=True), -grad], axis=1)


def log_sums(scores: Array) -> tuple[Array, Array]:
    """Return log(sum(exp(scores))) over the last axis, and its gradient, which is the softmax."""
    xp, peaks = kernels.array_module(scores), scores.max(axis=-1, keepdims=True)
    exponentials = xp.exp(scores - peaks)
    totals = exponentials.sum(axis=-1, keepdims=True)
    return (peaks + xp.log(totals))[..., 0], exponentials / totals


def ranking_loss(scores: Array) -> tuple[Array, Array]:
    """Return the mean cross entropy of each row's softmax and its own index, and the gradient of `scores`.

    `scores` are (rows, candidates): row i should choose candidate i.
    """
    rows = kernels.array_module(scores).arange(len(scores))
    sums, grad = log_sums(scores)
    grad[rows, rows] -= 1
    return (sums - scores[rows, rows]).mean(), grad / len(scores)


def ordering_loss(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return log(1 + sum of exp(scores_i - scores_j) over all pairs with labels_i < labels_j), and its gradient.

    `scores` and `labels` are (rows,) each (Su 2022, https://kexue.fm/archives/8847).
    """
    xp = kernels.array_module(scores)
    differences = xp.where(labels[:, None] < labels, scores[:, None] - scores, -xp.inf)
    value, shares = log_sums(xp.concatenate([xp.zeros(1), differences.ravel()]))  # the 1 is exp(0)
    weights = shares[1:].reshape(differences.shape)
    return value, weights.sum(axis=1) - weights.sum(axis=0)
