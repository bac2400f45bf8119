"""Losses of vectors and scores, each with its gradient: plain functions of arrays of NumPy or CuPy.

Those of a student and a teacher are means as 0-d arrays; the teacher's arrays are targets, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import Array
from bertcore.nn.functional import sequence_spans
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tensor

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
    xp, difference = kernels.array_module(left), left - right
    lengths = xp.sqrt((difference * difference).sum(axis=-1))
    return lengths, _both_sides(difference / xp.where(lengths > 0, lengths, 1)[:, None])


def manhattan_distances(left: Array, right: Array) -> tuple[Array, Pullback]:
    """Return the sums of the rows' absolute differences, in the form of `cosines`."""
    xp, difference = kernels.array_module(left), left - right
    return xp.abs(difference).sum(axis=-1), _both_sides(xp.sign(difference))


def _both_sides(slopes: Array) -> Pullback:
    def pullback(grad):
        part = grad[:, None] * slopes
        return part, -part

    return pullback


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


def softplus(values: Array) -> tuple[Array, Array]:
    """Return log(1 + exp(values)) and its derivative, the sigmoid, without overflow."""
    xp = kernels.array_module(values)
    return xp.logaddexp(0, values), 0.5 + xp.tanh(values / 2) / 2


def ranking_loss(scores: Array) -> tuple[Array, Array]:
    """Return the mean cross entropy of each row's softmax and its own index, and the gradient of `scores`.

    `scores` are (rows, candidates): row i should choose candidate i.
    """
    rows = kernels.array_module(scores).arange(len(scores))
    sums, grad = log_sums(scores)
    grad[rows, rows] -= 1
    return (sums - scores[rows, rows]).mean(), grad / len(scores)


CHUNK = 1 << 16  # logits compared at once: intermediate results stay in the second-level cache
SHORT = 512  # columns


@operation()
def soft_target_divergence(run: Pass, logits: Array, *, targets: Array, temperature: float) -> Tensor:
    """Return T^2 times the mean over rows of KL(softmax(targets / T) || softmax(logits / T)), (rows, classes) both.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2.
    """
    gradient = kernels.array_module(logits).empty_like(logits)
    loss = _soft_targets(logits, targets, temperature, gradient)

    def pullback(grad):
        gradient[...] *= gradient.dtype.type(grad * temperature / max(len(logits), 1))
        return (gradient,)

    return loss, pullback


@soft_target_divergence.inference
def _soft_target_divergence(run, logits, *, targets, temperature):
    return _soft_targets(logits, targets, temperature, None)


def _soft_targets(logits, targets, temperature, gradient):
    """Return the loss; `gradient`, unless None, is filled with the difference of both softmaxes."""
    total, count = 0.0, max(1, CHUNK // max(logits.shape[1], 1))
    for first in range(0, len(logits), count):
        rows = slice(first, first + count)
        out = None if gradient is None else gradient[rows]
        value, _ = divergence_of_scores(logits[rows] / temperature, targets[rows] / temperature, out=out)
        total += value
    return kernels.array_module(logits).asarray(total * temperature**2 / max(len(logits), 1), logits.dtype)


def divergence_of_scores(scores: Array, targets: Array, out: Array | None = None) -> tuple[Array, Array]:
    """Return the sum over rows of KL(softmax(targets) || softmax(scores)), (..., classes) both, and its gradient.

    The gradient is written to `out` if that is given.
    """
    xp, own, wanted = kernels.array_module(scores), kernels.softmax(scores), kernels.softmax(targets)
    losses = _exact_log_sums(scores, own) - _exact_log_sums(targets, wanted)
    losses += xp.einsum("...c,...c->...", wanted, targets - scores)  # faster than a product and its sum in float64
    return losses.sum(dtype="float64"), xp.subtract(own, wanted, out=own if out is None else out)


def _exact_log_sums(scores, probabilities):
    """Return log(sum(exp(scores))) over the last axis."""
    if scores.shape[-1] > SHORT:  # from the largest score and its probability: NumPy's maximum of short rows is slow
        return scores.max(axis=-1) - np.log(probabilities.max(axis=-1))
    xp, rows = kernels.array_module(scores), scores.reshape(-1, scores.shape[-1])
    _, lse = kernels.cross_entropy(rows, xp.zeros(len(rows), int), reduction="none", return_lse=True)
    return (lse[:, 0] + lse[:, 1]).reshape(scores.shape[:-1])


def squared_error_of_scores(scores: Array, targets: Array) -> tuple[Array, Array]:
    """Return the sum over rows of the mean squared difference, (..., keys) both, and its gradient."""
    difference, keys = scores - targets, scores.shape[-1]
    losses = kernels.array_module(scores).einsum("...k,...k->...", difference, difference)
    difference *= difference.dtype.type(2 / keys)
    return losses.sum(dtype="float64") / keys, difference


@operation()
def cosine_distance(run: Pass, rows: Array, *, targets: Array) -> Tensor:
    """Return the mean over rows of 1 - cosine, (rows, features) both."""
    scores, pullback = cosines(rows, targets)
    count = max(len(scores), 1)
    ones = kernels.array_module(rows).ones_like(scores)
    return 1 - scores.sum() / count, lambda grad: pullback(-grad / count * ones)[:1]


@operation()
def relation_loss(
    run: Pass,
    left: Array,
    right: Array,
    *,
    targets: tuple[Array, Array],
    heads: int,
    scales: tuple[float, float],
    cu_seqlens: np.ndarray,
    compare: Callable[[Array, Array], tuple[Array, Array]],
) -> Tensor:
    """Compare each token's relations to its sequence with a teacher's: the mean over heads and tokens.

    The relations of a head are scale * left @ right.T, (tokens of a sequence, tokens of a sequence): for query and key
    the attention scores, for value and value the relations of MiniLM (Wang et al. 2020, arXiv:2002.10957, section 3).

    Args:
        run: the pass.
        left, right: the student's arrays, (tokens, width), heads side by side.
        targets: the teacher's arrays, (tokens, teacher's width), with as many heads.
        heads: the number of heads.
        scales: the student's and the teacher's scale.
        cu_seqlens: offsets of the sequences, (sequences + 1,).
        compare: a function of both scores, (heads, tokens, tokens), to the sum over their rows and its gradient.
    """
    total, kept, (scale, target_scale) = 0.0, [], scales
    for first, end in sequence_spans(cu_seqlens):
        own = _in_heads(left[first:end], heads), _in_heads(right[first:end], heads)
        wanted = (_in_heads(array[first:end], heads) for array in targets)
        value, gradient = compare(_scores(*own, scale), _scores(*wanted, target_scale))
        total += value
        kept.append((slice(first, end), *own, gradient))
    xp, count = kernels.array_module(left), max(heads * len(left), 1)

    def pullback(grad):
        of_left = xp.empty_like(left)
        of_right = None if right is left else xp.empty_like(right)
        factor = left.dtype.type(grad * scale / count)
        for tokens, own_left, own_right, of_scores in kept:
            of_scores *= factor
            if right is left:  # the gradients of both
                _in_heads(of_left[tokens], heads)[...] = (of_scores + of_scores.transpose(0, 2, 1)) @ own_left
                continue
            _in_heads(of_left[tokens], heads)[...] = of_scores @ own_right
            _in_heads(of_right[tokens], heads)[...] = of_scores.transpose(0, 2, 1) @ own_left
        return of_left, of_right

    return xp.asarray(total / count, left.dtype), pullback


def _in_heads(array, heads):
    """Return (tokens, heads * width) as a view (heads, tokens, width)."""
    return array.reshape(len(array), heads, array.shape[1] // heads).transpose(1, 0, 2)


def _scores(left, right, scale):
    scores = left @ right.transpose(0, 2, 1)
    scores *= scores.dtype.type(scale)
    return scores
