"""Losses over pairs with a label, triplets, and the triplets of a batch of labelled texts.

Names, arguments and values follow sentence-transformers' losses.
"""

from __future__ import annotations

from typing import Any

from bertcore import kernels
from bertcore.arguments import check_number
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.training.objectives import similarity
from bertcore.training.objectives.embeddings import EmbeddingObjective, TextEncoder
from bertcore.training.objectives.similarity import ALL_DISTANCES, log_sums, softplus


class Pairs(EmbeddingObjective):
    """Base of objectives of the cosine of two texts and a label."""

    has_labels = True

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        scores, pullback = similarity.cosines(embeddings[:, 0], embeddings[:, 1])
        value, grad = self.of_cosines(scores, labels)
        return value, kernels.array_module(embeddings).stack(pullback(grad), axis=1)

    def of_cosines(self, scores: Array, labels: Array | None) -> tuple[Array, Array]:
        raise NotImplementedError


class CoSENTLoss(Pairs):
    """Pairs with a higher label get a higher cosine (Su 2022, https://kexue.fm/archives/8847).

    The loss is log(1 + sum of exp(scale * (cosine_i - cosine_j)) over all i, j with label_i < label_j), over the whole
    batch, without a mean.

    Args:
        model, more: as for `EmbeddingObjective`.
        scale: the factor on cosines.
    """

    def __init__(self, model: TextEncoder | None = None, scale: float = 20.0, **more: Any):
        super().__init__(model, **more)
        self.scale = check_number("scale", scale, above_zero=True)

    def of_cosines(self, scores: Array, labels: Array | None) -> tuple[Array, Array]:
        xp, scores = kernels.array_module(scores), self.scale * scores
        differences = xp.where(labels[:, None] < labels, scores[:, None] - scores, -xp.inf)
        value, shares = log_sums(xp.concatenate([xp.zeros(1), differences.ravel()]))  # the 1 is exp(0)
        weights = shares[1:].reshape(differences.shape)
        return value, self.scale * (weights.sum(axis=1) - weights.sum(axis=0))


class CosineSimilarityLoss(Pairs):
    """The cosine of two texts approaches their label: the mean squared error (Reimers and Gurevych 2019, section 3).

    Source: arXiv:1908.10084.
    """

    def of_cosines(self, scores: Array, labels: Array | None) -> tuple[Array, Array]:
        return similarity.squared_error(scores, labels)


class TripletLoss(EmbeddingObjective):
    """The second text becomes nearer to the first than the third is, by a margin.

    The loss is the mean of max(0, distance to the second - distance to the third + margin) (Schroff et al. 2015,
    arXiv:1503.03832; Reimers and Gurevych 2019, section 3).

    Args:
        model, more: as for `EmbeddingObjective`.
        distance_metric: "euclidean", "cosine" (1 - cosine) or "manhattan", or a member of `TripletDistanceMetric`.
        triplet_margin: in units of the distance.
    """

    columns = (3, 3)

    def __init__(
        self,
        model: TextEncoder | None = None,
        distance_metric: str = "euclidean",
        triplet_margin: float = 5.0,
        **more: Any,
    ):
        super().__init__(model, **more)
        checks.choice("distance_metric", distance_metric, similarity.DISTANCES)
        self.distance_metric, self.margin = distance_metric, check_number("triplet_margin", triplet_margin)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        anchors, positives, negatives = (embeddings[:, column] for column in range(3))
        near, of_near = similarity.DISTANCES[self.distance_metric](anchors, positives)
        far, of_far = similarity.DISTANCES[self.distance_metric](anchors, negatives)
        excess = near - far + self.margin
        grad = (excess > 0) / len(excess)
        (first, second), (other, third) = of_near(grad), of_far(-grad)
        xp = kernels.array_module(embeddings)
        return xp.maximum(excess, 0).mean(), xp.stack([first + other, second, third], axis=1)


class _BatchTriplets(EmbeddingObjective):
    """Base of losses over triplets of a batch of single texts whose labels are classes.

    A triplet has two texts of one class and a third of another; its loss is max(0, distance of the first two - distance
    of the first and the third + margin). (Hermans et al. 2017, arXiv:1703.07737; Schroff et al. 2015, arXiv:1503.03832)

    Args:
        model, more: as for `EmbeddingObjective`.
        distance_metric: "euclidean" or "cosine" (1 - cosine), or a member of `BatchHardTripletLossDistanceFunction`.
        margin: in units of the distance.
    """

    columns = (1, 1)
    has_labels = True

    def __init__(
        self, model: TextEncoder | None = None, distance_metric: str = "euclidean", margin: float = 5.0, **more: Any
    ):
        super().__init__(model, **more)
        checks.choice("distance_metric", distance_metric, ALL_DISTANCES)
        self.distance_metric, self.margin = distance_metric, check_number("margin", margin)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        distances, pullback = ALL_DISTANCES[self.distance_metric](embeddings[:, 0])
        same = labels[:, None] == labels
        positives = same & ~kernels.array_module(labels).eye(len(labels), dtype=bool)
        value, grad = self.of_distances(distances, positives, ~same)
        return value, pullback(grad)[:, None]

    def of_distances(self, distances: Array, positives: Array, negatives: Array) -> tuple[Array, Array]:
        raise NotImplementedError


class BatchHardTripletLoss(_BatchTriplets):
    """The triplet of each text with the farthest of its class and the nearest of another: the mean over texts.

    Without another text of its class the first distance is 0; without any of another class the second is the largest.
    """

    def of_distances(self, distances: Array, positives: Array, negatives: Array) -> tuple[Array, Array]:
        xp = kernels.array_module(distances)
        rows, among = xp.arange(len(distances)), xp.where(positives, distances, 0)
        far = among.argmax(axis=1)
        near = xp.where(negatives, distances, xp.inf).argmin(axis=1)
        near = xp.where(negatives.any(axis=1), near, distances.argmax(axis=1))
        loss, slope = self.of_differences(among[rows, far] - distances[rows, near])
        grad = xp.zeros_like(distances)
        grad[rows, far] += slope / len(rows) * positives[rows, far]
        grad[rows, near] -= slope / len(rows)
        return loss.mean(), grad

    def of_differences(self, differences: Array) -> tuple[Array, Array]:
        """Return the loss of each difference, and its derivative."""
        excess = differences + self.margin
        return kernels.array_module(excess).maximum(excess, 0), excess >= 0


class BatchHardSoftMarginTripletLoss(BatchHardTripletLoss):
    """`BatchHardTripletLoss` with log(1 + exp(difference)) instead of a margin."""

    def __init__(self, model: TextEncoder | None = None, distance_metric: str = "euclidean", **more: Any):
        super().__init__(model, distance_metric, 0.0, **more)

    def of_differences(self, differences: Array) -> tuple[Array, Array]:
        return softplus(differences)


class BatchSemiHardTripletLoss(_BatchTriplets):
    """The triplet of each pair of a class with the nearest text of another class beyond it: the mean over pairs.

    That text is farther from the first one than the second is; without such a text it is the farthest of another class.
    """

    def of_distances(self, distances: Array, positives: Array, negatives: Array) -> tuple[Array, Array]:
        xp = kernels.array_module(distances)
        order = xp.where(negatives, distances, xp.inf).argsort(axis=1, kind="stable")
        farthest = xp.where(negatives, distances, -xp.inf).argmax(axis=1)
        columns = xp.empty_like(order)
        for row, (own, nearest) in enumerate(zip(distances, order, strict=True)):
            nearest = nearest[: int(negatives[row].sum())]
            places = xp.searchsorted(own[nearest], own, side="right")
            columns[row] = xp.concatenate([nearest, farthest[row : row + 1]])[places]
        rows, has_any = xp.arange(len(distances))[:, None], negatives.any(axis=1, keepdims=True)
        excess = distances - xp.where(has_any, distances[rows, columns], 0) + self.margin
        slope = (positives & (excess > 0)) / xp.maximum(positives.sum(), 1)
        grad = slope.copy()
        xp.add.at(grad, (rows, columns), -slope * has_any)
        return (slope * excess).sum(), grad


class BatchAllTripletLoss(_BatchTriplets):
    """All triplets of a batch: the mean over those whose loss is not 0."""

    def of_distances(self, distances: Array, positives: Array, negatives: Array) -> tuple[Array, Array]:
        xp = kernels.array_module(distances)
        first, second = positives.nonzero()
        excess = distances[first, second][:, None] - distances[first] + self.margin
        slope = (negatives[first] & (excess > 0)).astype(distances.dtype)
        slope /= xp.maximum(slope.sum(), 1)
        grad = xp.zeros_like(distances)
        grad[first, second] = slope.sum(axis=1)
        xp.add.at(grad, first, -slope)
        return (slope * excess).sum(), grad
