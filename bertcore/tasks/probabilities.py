"""From scores to probabilities, in float64 on the host."""

from collections.abc import Callable

import numpy as np


def softmax(scores: np.ndarray) -> np.ndarray:
    """The softmax over the last axis, float64."""
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-score)), float64, without overflow."""
    scores = scores.astype(np.float64)
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1.0, small) / (1.0 + small)


def unchanged(array: np.ndarray) -> np.ndarray:
    """The array itself; a function by a name, unlike a lambda, goes to another process with what holds it."""
    return array


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": unchanged,
}


def published_function(problem_type: str | None, num_labels: int) -> str:
    """Which of `FUNCTIONS` makes probabilities of a classifier's scores, by what its config says of the problem: "none"
    for regression, "sigmoid" for one label or several at once, "softmax" for others."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or num_labels == 1 else "softmax"
