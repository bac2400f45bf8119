"""Objectives of sentence embeddings beside the losses of sentence-transformers, in float64: values and gradients."""

import numpy as np
import pytest

from bertcore.training import objectives

pytestmark = pytest.mark.parity

LABELS = np.array([0.3, 0.9, 0.3, -0.2, 0.5])
DISTANCES = {"euclidean": "EUCLIDEAN", "cosine": "COSINE", "manhattan": "MANHATTAN"}


def _triplet(losses, distance, margin):
    metric = getattr(losses.TripletDistanceMetric, DISTANCES[distance])
    return losses.TripletLoss(None, distance_metric=metric, triplet_margin=margin)


CASES = {  # name: (ours, columns, labels, theirs)
    "pairs": (objectives.MultipleNegativesRanking(), 2, None, lambda it: it.MultipleNegativesRankingLoss(None)),
    "negatives": (
        objectives.MultipleNegativesRanking(scale=3.0), 4, None,
        lambda it: it.MultipleNegativesRankingLoss(None, scale=3.0),
    ),
    "both ways": (
        objectives.MultipleNegativesRanking(symmetric=True), 2, None,
        lambda it: it.MultipleNegativesSymmetricRankingLoss(None),
    ),
    "cosent": (objectives.CoSENT(scale=7.0), 2, LABELS, lambda it: it.CoSENTLoss(None, scale=7.0)),
    "cosine": (objectives.CosineSimilarity(), 2, LABELS, lambda it: it.CosineSimilarityLoss(None)),
    **{
        f"triplet, {distance}": (
            objectives.Triplet(margin, distance), 3, None,
            lambda it, distance=distance, margin=margin: _triplet(it, distance, margin),
        )
        for distance, margin in (("euclidean", 1.3), ("cosine", 0.2), ("manhattan", 2.0))
    },
    "margins": (objectives.MarginMSE(), 3, LABELS, lambda it: it.MarginMSELoss(None)),
    "margins of negatives": (
        objectives.MarginMSE(), 4, np.stack([LABELS, 2 * LABELS], axis=1), lambda it: it.MarginMSELoss(None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_sentence_transformers(name):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.losses")
    ours, columns, labels, theirs = CASES[name]
    vectors = np.random.default_rng(2).normal(size=(5, columns, 17))
    columns = [torch.from_numpy(vectors[:, column]).requires_grad_() for column in range(columns)]
    given = None if labels is None else torch.from_numpy(labels)
    loss = theirs(losses).compute_loss_from_embeddings(columns, given)
    loss.backward()
    value, grad = ours.of_embeddings(vectors, labels)
    assert value == pytest.approx(loss.item(), rel=1e-7)  # they round labels to float32
    expected = np.stack([column.grad.numpy() for column in columns], axis=1)
    np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
