"""A batch of texts, small students and teachers, a loss by its definition, and a check of gradients."""

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification
from bertcore.training.collators import IGNORED
from tests.slopes import assert_slope, assert_slope_of_parameters
from tests.tiny_bert import CONFIG

LENGTHS = [9, 4, 1, 7]
RNG = np.random.default_rng(0)
BATCH = {
    "input_ids": RNG.integers(5, 40, (4, 9)),
    "attention_mask": (np.arange(9) < np.array(LENGTHS)[:, None]).astype(int),
    "labels": np.array([0, 1, 2, 1]),
}
DEEP = {**CONFIG, "num_hidden_layers": 4}
WIDE = {**DEEP, "hidden_size": 48}


def classifier(config=CONFIG, seed=2, **options):
    return AutoModelForSequenceClassification.from_config(config, dtype="float64", num_labels=3, seed=seed, **options)


def inputs(batch=BATCH):
    return {name: array for name, array in batch.items() if name != "labels"}


def mean_cross_entropy(logits, labels):
    """Of the labels other than -100; `logits` have one axis more."""
    scores, labels = logits[labels != IGNORED], labels[labels != IGNORED]
    return (np.log(np.exp(scores).sum(axis=-1)) - scores[np.arange(len(scores)), labels]).mean()


def assert_gradients(objective, model, batch, rel=1e-5):
    """Gradients are slopes of the loss, along a direction of the model, and for each parameter beside it; return it."""
    out, grads = objective.value_and_grad(model, batch)
    assert objective.forward(model, batch).loss == pytest.approx(out.loss, rel=1e-12)
    assert_slope(model, grads, lambda: objective.forward(model, batch).loss, rel=rel)
    beside = objective.parameters(model)
    assert_slope_of_parameters(beside, grads, lambda: objective.forward(model, batch).loss, rel=rel)
    return out.loss
