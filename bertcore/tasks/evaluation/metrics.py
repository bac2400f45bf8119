"""Metrics of scores and of what is right."""

from typing import Any

import numpy as np

from bertcore.tasks.evaluation.evaluator import Metrics


def ideal_gains(count: int) -> np.ndarray:
    """Return the discounted gain of 1, 2, ... answers at the first ranks."""
    return np.cumsum(1 / np.log2(np.arange(count) + 2))


def by_threshold(scores: np.ndarray, is_right: np.ndarray, total: int) -> tuple[Any, ...]:
    """Return for each threshold, from the highest score on: the last place above it, answers, precision, F1.

    The last entry is the average precision. Scores come in descending order; equal ones share a threshold.
    """
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    right = np.cumsum(is_right)[ends]
    precision, recall = right / (ends + 1), right / total
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros(len(ends)), where=right > 0)
    return ends, right, precision, f1, float((precision * np.diff(right, prepend=0)).sum() / total)


def average_precision(is_right: np.ndarray, scores: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    return by_threshold(scores[order], is_right[order], int(is_right.sum()))[-1]


def ndcg(is_right: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Return the normalised discounted gain of the first k; equal scores share the mean of their gains."""
    order = np.argsort(-scores, kind="stable")
    discounts = np.where(np.arange(len(scores)) < k, 1 / np.log2(np.arange(len(scores)) + 2), 0.0)
    starts = np.flatnonzero(np.append(True, np.diff(scores[order]) != 0))
    counts = np.diff(np.append(starts, len(scores)))
    gains = np.add.reduceat(is_right[order].astype(np.float64), starts) / counts * np.add.reduceat(discounts, starts)
    return float(gains.sum() / discounts[: is_right.sum()].sum())


def of_thresholds(scores: np.ndarray, labels: np.ndarray) -> Metrics:
    """Return the metrics of telling pairs apart by thresholds of their scores, the best one for accuracy and for F1."""
    order = np.argsort(-scores, kind="stable")
    scores, is_right = scores[order], labels[order]
    ends, right, precision, f1, average = by_threshold(scores, is_right, max(int(labels.sum()), 1))
    accuracy = (right + (~labels).sum() - (ends + 1 - right)) / len(labels)
    found: Metrics = {"accuracy": float((~labels).mean()), "f1": 0.0, "precision": 0.0, "recall": 0.0, "mcc": 0.0}
    found["accuracy_threshold"] = float(np.nextafter(scores[0], scores.dtype.type(np.inf)))  # none is alike
    found["f1_threshold"] = 0.0
    best = int(np.argmax(accuracy))
    if accuracy[best] > found["accuracy"]:
        found |= {"accuracy": float(accuracy[best]), "accuracy_threshold": _between(scores, int(ends[best]))}
    if right[-1]:
        best = int(np.argmax(f1))
        found |= {"f1": float(f1[best]), "precision": float(precision[best])}
        found |= {"recall": float(right[best] / right[-1]), "f1_threshold": _between(scores, int(ends[best]))}
    predicted = scores >= found["f1_threshold"]
    found["mcc"] = float(np.corrcoef(predicted, is_right)[0, 1]) if 0 < predicted.mean() < 1 and right[-1] else 0.0
    found["ap"] = average
    return found


def _between(scores: np.ndarray, end: int) -> float:
    """Return a threshold below the score at `end` and above the next one."""
    if end + 1 == len(scores):
        return float(scores[end])
    middle = (scores[end] + scores[end + 1]) / 2
    return float(scores[end] if middle == scores[end + 1] else middle)
